"""What the plan reports about a script, by static analysis: whether it can resume from its checkpoints, what
it lacks for several ranks, and a built-in algorithm that does the same. Pure.

A built-in algorithm needs no code and no container. Imports alone do not show whether the script does
anything else, so the plan suggests the algorithm and does not choose it.
"""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.catalog import instances
from smlaunch.facts.discovered_facts import DiscoveredFacts, ScriptFacts
from smlaunch.facts.script_capability import script_capability
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import Diagnostics
from smlaunch.strategies.base import Strategy, find_imported_library


def advise_script(
    facts: DiscoveredFacts, strategy: Strategy, total_ranks: int | None, diagnostics: Diagnostics
) -> None:
    """Add warnings about a script that opens a display, or lacks what several ranks need.
    ``total_ranks``: of all hosts; None if only the hosts know."""
    script, entry = facts.script, facts.source.entry
    # Features are calls that static analysis found, by kind; None if it was impossible. This one is the place
    # where the script first opens a window, such as plt.show().
    display_call = (script.features or {}).get("display")
    if display_call is not None:
        diagnostics.add_warning(
            f"{display_call.file or entry}, line {display_call.line}: hosts have no display; write the "
            "figure to a file instead (savefig, imwrite)."
        )
    # The script itself, not a launcher or library, must join its ranks.
    may_have_several_ranks = strategy.script_joins_ranks and total_ranks != 1
    if may_have_several_ranks:
        _warn_of_missing_steps(script, entry, total_ranks, diagnostics)


def _warn_of_missing_steps(
    script: ScriptFacts, entry: str, total_ranks: int | None, diagnostics: Diagnostics
) -> None:
    """Warn of what a script lacks to train on several ranks, such as a sampler for each rank's data."""
    capability = script_capability(script, entry)
    # Such a script can already join its ranks.
    joins_ranks = capability.accelerator_use == "several"
    # If only the process group, which joins them, is missing, the strategy warns.
    lacks_more_than_process_group = len(capability.missing_steps) > 1
    if capability.missing_steps and (joins_ranks or lacks_more_than_process_group):
        ranks_text = "several ranks" if total_ranks is None else f"{total_ranks} ranks"
        diagnostics.add_warning(
            f"For {ranks_text} {entry} lacks, by its source: {'; '.join(capability.missing_steps)}."
        )


def warn_of_idle_accelerators(
    job: Job, facts: DiscoveredFacts, strategy: Strategy, instance_type: str, diagnostics: Diagnostics
) -> None:
    """Warn if the script uses one accelerator, by its source, and the instance type has several. No warning
    if the job states its number of processes, or the strategy starts more than one."""
    is_process_count_open = job.compute.processes_per_host is None and not strategy.joins_hosts
    if facts.target != "aws" or not is_process_count_open:
        return
    catalog_entry = instances.find_instance_type(instance_type)
    if catalog_entry is None or catalog_entry.accelerators < 2:
        return
    entry = facts.source.entry
    capability = script_capability(facts.script, entry)
    uses_one = capability.uses_accelerators and capability.accelerator_use == "one"
    if not uses_one or not capability.was_analyzed:
        return
    diagnostics.add_warning(
        f"{entry} uses one accelerator (by its source), and {catalog_entry.name} has "
        f"{catalog_entry.accelerators_text()}, all of which are billed: use a smaller type, or several "
        f"accelerators, for which it lacks: {'; '.join(capability.missing_steps)}."
    )


ALGORITHM_BY_LIBRARY: Mapping[str, str] = {
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "autogluon.tabular": "autogluon-tabular",
    "gluonts": "forecasting-deepar",
    "gensim.models.Word2Vec": "blazingtext",
    "fasttext": "blazingtext",
    "sklearn.cluster.KMeans": "kmeans",
    "sklearn.decomposition.PCA": "pca",
    "sklearn.decomposition.LatentDirichletAllocation": "lda",
    "sklearn.neighbors.KNeighborsClassifier": "knn",
    "sklearn.neighbors.KNeighborsRegressor": "knn",
    "sklearn.linear_model.LogisticRegression": "linear-learner",
    "sklearn.linear_model.LinearRegression": "linear-learner",
}
"""Id of the algorithm in the catalog, by what a script imports."""

_GENERAL_LIBRARIES = ("torch", "tensorflow", "jax", "mxnet", "pyspark", "ray", "dask")
"""A script that imports one of these does more than a built-in algorithm can."""

_HOSTS_TEXT_BY_SUPPORT = {"several": "also on several hosts", "one": "on one host", "unclear": "on one host"}


def suggest_built_in(job: Job, script: ScriptFacts, diagnostics: Diagnostics) -> None:
    """Suggest a built-in algorithm of SageMaker if the libraries that the script imports are those of one
    algorithm, nothing shows that it does more, and the job leaves the strategy open."""
    if job.strategy is not None or job.entry is None:
        return
    # A script that imports PyTorch, Spark or the like does more than a built-in algorithm can.
    if find_imported_library(script.imports, _GENERAL_LIBRARIES) is not None:
        return
    imported_libraries = [
        library
        for library in ALGORITHM_BY_LIBRARY
        if find_imported_library(script.imports, (library,)) is not None
    ]
    # The id in the catalog, such as "knn", of the algorithm that does what the library does.
    algorithm_ids = {ALGORITHM_BY_LIBRARY[library] for library in imported_libraries}
    if len(algorithm_ids) != 1:
        return
    # Imported late: few scripts get here, and the table of algorithms is another file to read.
    from smlaunch.catalog import algorithms

    algorithm = algorithms.find_algorithm(algorithm_ids.pop())
    if algorithm is None:
        return
    # A group is an input channel that the algorithm requires, by its possible names, the usual one first.
    channel_text = " or ".join(channel_group[0] for channel_group in algorithm.required_channels)
    # algorithm.hosts: whether it runs on several hosts. algorithm.files: the formats that it reads.
    diagnostics.add_reason(
        "built-in.would-do",
        f"The script imports {imported_libraries[0]}: if that is all it does, SageMaker's built-in "
        f"{algorithm.name} ({_HOSTS_TEXT_BY_SUPPORT[algorithm.hosts]}, {', '.join(algorithm.files)} in "
        f"channel {channel_text}) takes no script, by algorithm: {algorithm.id}.",
    )


TRAIN_PACKAGE = "smlaunch.train"
FILE_LIST_IMPORTS = frozenset(("smlaunch.train.shard_files", "smlaunch.train.shard_files.shard_files"))
"""Imports of what lists the files of a host."""

_LIGHTNING = (
    "Lightning resumes from a checkpoint if fit gets ckpt_path; smlaunch.train.lightning does that, and "
    "restores the order of samples too"
)
_KERAS = (
    "BackupAndRestore resumes after the last complete epoch, or with save_freq within one; the data order "
    "restarts"
)

RESUME_NOTE_BY_LIBRARY: Mapping[str, str] = {
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
    job: Job, facts: DiscoveredFacts, strategy: Strategy, field: str, reason: str, diagnostics: Diagnostics
) -> None:
    """Report what a run of several segments (a chain of training jobs) restores from checkpoints; add a
    problem if nothing shows that the script can resume. ``field``: the job's field that makes the run take
    several jobs. ``reason``: the beginning of a sentence, why it does."""
    script, entry = facts.script, facts.source.entry or job.program
    if uses_smlaunch_train(script):
        diagnostics.add_reason(
            "resume.exact",
            f"{entry} uses smlaunch.train: a segment resumes exactly where the one before has stopped.",
        )
        return
    # What the strategy's framework, or an imported library, restores from its own checkpoints.
    resume_note = strategy.checkpoint_note or _resume_note_of_library(script)
    # The script names the directory of the host from which checkpoints are uploaded.
    names_checkpoint_dir = script.names_checkpoint_dir or imports_package(script, "smlaunch.contract")
    # Who states a prefix for checkpoints probably resumes from them.
    states_checkpoint_prefix = job.checkpoints is not None and job.checkpoints.uri is not None
    if resume_note is not None:
        diagnostics.add_warning(f"Without smlaunch.train a chain depends on the script: {resume_note}.")
    elif names_checkpoint_dir:
        diagnostics.add_warning(
            f"{entry} saves its own checkpoints: what they do not contain restarts in every segment; "
            "`smlaunch verify-resume` shows what that is."
        )
    elif entry.endswith(".sh"):
        diagnostics.add_warning(
            f"The program that {entry} starts cannot be analyzed: a chain is useless unless it resumes from "
            "the checkpoint directory."
        )
    elif states_checkpoint_prefix:
        diagnostics.add_warning(
            f"Nothing in {entry} shows that it resumes from its checkpoints; `smlaunch verify-resume` tests "
            "it."
        )
    else:
        diagnostics.add_problem(field, f"{reason}, and {NOT_RESUMABLE.format(entry=entry)}")


def uses_smlaunch_train(script: ScriptFacts) -> bool:
    return imports_package(script, TRAIN_PACKAGE)


def _resume_note_of_library(script: ScriptFacts) -> str | None:
    """Return how the script's library resumes from its checkpoints; None if it imports no library of which
    that is known."""
    for library, note in RESUME_NOTE_BY_LIBRARY.items():
        if imports_package(script, library):
            return note
    return None


def imports_package(script: ScriptFacts, name: str) -> bool:
    imports = script.imports | script.module_imports
    return any(imported == name or imported.startswith(name + ".") for imported in imports)
