"""Whether a script can resume from its checkpoints, and so whether a chain of segments is useful."""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts, ScriptFacts
from smlaunch.strategies.base import Strategy

TRAIN_PACKAGE = "smlaunch.train"

_LIGHTNING = (
    "Lightning resumes from a checkpoint if fit gets ckpt_path; smlaunch.train.lightning does that, and "
    "restores the order of samples too"
)
_KERAS = (
    "BackupAndRestore resumes after the last complete epoch, or with save_freq within one; the data order "
    "restarts"
)

CHECKPOINTS_BY_LIBRARY: Mapping[str, str] = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": (
        "the Trainer resumes if train gets resume_from_checkpoint; smlaunch.train.transformers does that, "
        "and stops at the planned end"
    ),
    "accelerate": (
        "accelerate resumes if the script calls load_state; it does not save the position in an epoch, "
        "unless the script skips the batches already trained on"
    ),
    "deepspeed": (
        "DeepSpeed resumes if the script calls load_checkpoint; the script must restore the data order"
    ),
    "composer": "Composer's Trainer resumes with autoresume and the checkpoint directory as save_folder",
    "tensorflow": _KERAS,
    "keras": _KERAS,
    "xgboost": (
        "XGBoost resumes after the last saved tree if the script passes the saved model to train; sampling "
        "of rows or columns restarts"
    ),
    "lightgbm": "LightGBM resumes from init_model with the next tree; bagging restarts",
    "torch.distributed.checkpoint": (
        "the script decides what it loads: usually model and optimizer, data order and random state only "
        "if it does so"
    ),
    "torch.load": "the script loads a state of its own; what is not in it restarts in every segment",
}
"""How libraries with their own checkpoints resume, and what they do not restore, by what a script imports
or calls."""

NOT_RESUMABLE = (
    "nothing in {entry} resumes where another job has stopped, so every segment would start from the "
    "beginning. Use smlaunch.train (a few lines, docs/resume.md), or let it save its own checkpoints and "
    "state their prefix as checkpoints.uri; for a program that cannot be changed, use process images: "
    "DMTCP (CPU) or CRIU with cuda-checkpoint, in an image of your own"
)


def check_resumability(
    job: Job, facts: Facts, strategy: Strategy, field: str, reason: str, diagnostics: Diagnostics
) -> None:
    """Report what a chain of segments restores, or reject ``field`` if the script cannot resume.
    ``reason``: the beginning of a sentence, why there are several segments."""
    script, entry = facts.script, facts.source.entry or job.program
    if uses_smlaunch_train(script):
        diagnostics.add_reason(
            "resume.exact",
            f"{entry} uses smlaunch.train: a segment resumes exactly where the one before has stopped.",
        )
        return
    library_note = strategy.checkpoint_note or _library_note(script)
    if library_note is not None:
        diagnostics.add_warning(f"Without smlaunch.train a chain depends on the script: {library_note}.")
    elif script.names_checkpoint_dir or _imports_package(script, "smlaunch.contract"):
        diagnostics.add_warning(
            f"{entry} saves its own checkpoints: what they do not contain restarts in every segment; "
            "`smlaunch verify-resume` shows what that is."
        )
    elif entry.endswith(".sh"):
        diagnostics.add_warning(
            f"The program that {entry} starts cannot be analyzed: a chain is useless unless it resumes from "
            "the checkpoint directory."
        )
    elif job.checkpoints is not None and job.checkpoints.uri is not None:
        diagnostics.add_warning(
            f"Nothing in {entry} shows that it resumes from its checkpoints; `smlaunch verify-resume` tests "
            "it."
        )
    else:
        diagnostics.add_problem(field, f"{reason}, and {NOT_RESUMABLE.format(entry=entry)}")


def uses_smlaunch_train(script: ScriptFacts) -> bool:
    return _imports_package(script, TRAIN_PACKAGE)


def _library_note(script: ScriptFacts) -> str | None:
    """How the script's library resumes; None without a known one."""
    return next(
        (note for library, note in CHECKPOINTS_BY_LIBRARY.items() if _imports_package(script, library)), None
    )


def _imports_package(script: ScriptFacts, name: str) -> bool:
    imports = script.imports | script.module_imports
    return any(imported == name or imported.startswith(name + ".") for imported in imports)
