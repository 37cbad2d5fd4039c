"""What a chain of segments is worth to this script: whether anything in it goes on where a job stopped."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import ScriptFacts, Surroundings
from smlaunch.strategies.base import Strategy

OURS = "smlaunch.train"

_LIGHTNING = (
    "Lightning goes on from a checkpoint when fit gets ckpt_path; smlaunch.train.lightning does that, and "
    "keeps the order of samples too"
)
_KERAS = (
    "BackupAndRestore goes on with the epoch after the last whole one, or with save_freq within it; the "
    "data's order begins anew"
)

OWN_CHECKPOINTS: Mapping[str, str] = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": "the Trainer goes on when train gets resume_from_checkpoint; "
    "smlaunch.train.transformers does that at the agreed stop",
    "accelerate": "accelerate goes on where the script calls load_state; what it does not save is the place "
    "in an epoch, unless the script skips the batches it has seen",
    "deepspeed": "DeepSpeed goes on where the script calls load_checkpoint; the data's order is the script's",
    "composer": "Composer's Trainer goes on with autoresume and the checkpoint directory as save_folder",
    "tensorflow": _KERAS,
    "keras": _KERAS,
    "xgboost": "XGBoost goes on with the tree after the last saved one, where the script hands the saved "
    "model to train; sampling by rows or columns draws anew",
    "lightgbm": "LightGBM goes on from init_model with the next tree; bagging draws anew",
    "torch.distributed.checkpoint": "what it loads is up to the script: model and optimizer usually, the "
    "data's order and the random state only if it says so",
    "torch.load": "the script loads a state of its own; what is not in it begins anew in every segment",
}
"""Libraries with checkpoints of their own, by what a script imports or calls, and what they leave open."""

NOTHING = (
    "nothing in {entry} goes on where another job has stopped, so every segment would begin anew. Use "
    "smlaunch.train (a few lines, docs/resume.md), or keep checkpoints of its own and state their prefix as "
    "checkpoints.uri; for a program that cannot be changed, clusters have process images: DMTCP (CPU) or "
    "CRIU with cuda-checkpoint, in an image of your own"
)


def tell_worth(
    job: Job, surroundings: Surroundings, strategy: Strategy, field: str, why: str, notes: Notes
) -> None:
    """Says what the run's segments are worth, or refuses ``field`` where they are worth nothing. ``why``: the
    beginning of a sentence, why there are several."""
    script, entry = surroundings.script, surroundings.source.entry or job.program
    if uses_ours(script):
        notes.because(
            "resume.exact",
            f"{entry} uses smlaunch.train: a segment goes on exactly where the one before has stopped.",
        )
        return
    told = strategy.own_checkpoints or _library(script)
    if told is not None:
        notes.warn(f"Without smlaunch.train a chain is worth what the script makes of it: {told}.")
    elif script.names_checkpoints or _has(script, "smlaunch.protocol"):
        notes.warn(
            f"{entry} keeps checkpoints of its own: what it does not save begins anew in every segment; "
            "`smlaunch verify-resume` shows what that is."
        )
    elif entry.endswith(".sh"):
        notes.warn(
            f"What {entry} starts cannot be seen: a chain is worth nothing unless that goes on from what it "
            "finds in the checkpoint directory."
        )
    elif job.checkpoints is not None and job.checkpoints.uri is not None:
        notes.warn(
            f"Nothing in {entry} shows that it goes on from its checkpoints; `smlaunch verify-resume` tries "
            "it."
        )
    else:
        notes.refuse(field, f"{why}, and {NOTHING.format(entry=entry)}")


def uses_ours(script: ScriptFacts) -> bool:
    return _has(script, OURS)


def _library(script: ScriptFacts) -> str | None:
    return next((told for name, told in OWN_CHECKPOINTS.items() if _has(script, name)), None)


def _has(script: ScriptFacts, name: str) -> bool:
    found = script.imports | script.reached
    return any(imported == name or imported.startswith(name + ".") for imported in found)
