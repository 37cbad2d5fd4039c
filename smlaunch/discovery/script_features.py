"""Finds the features of a script that show how many accelerators it can use, each with its first line.

Read from the syntax tree, without running the script. Names are resolved as Python would: after ``from
torch.nn.parallel import DistributedDataParallel as DDP``, ``DDP`` is that class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from smlaunch.planner.facts import FeatureLocation

FEATURE_BY_CALL: Mapping[str, str] = {
    "init_process_group": "process-group",
    "init_device_mesh": "process-group",
    "MultiWorkerMirroredStrategy": "process-group",
    "ParameterServerStrategy": "process-group",
    "Accelerator": "trainer",
    "Fabric": "trainer",
    "Trainer": "trainer",
    "Seq2SeqTrainer": "trainer",
    "SFTTrainer": "trainer",
    "DistributedDataParallel": "gradients",
    "DistributedOptimizer": "gradients",
    "FullyShardedDataParallel": "gradients",
    "fully_shard": "gradients",
    "all_reduce": "gradients",
    "allreduce": "gradients",
    "DistributedSampler": "sampler",
    "split_dataset_by_node": "sampler",
    "ResumableOrder": "order",
    "shard_files": "sampler",
    "set_epoch": "set-epoch",
    "DataLoader": "loader",
    "DataParallel": "one-process",
    "MirroredStrategy": "one-process",
    "set_device": "device",
    "get_rank": "rank",
    "save": "save",
    "save_pretrained": "save",
    "save_model": "save",
    "Checkpointer": "shared-save",
    "backward": "backward",
}
"""By the last part of the called name."""

REQUIRED_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "DataLoader": ("torch",),
    "DataParallel": ("torch",),
    "save": ("torch",),
    "Trainer": ("lightning", "pytorch_lightning", "transformers", "composer", "trl"),
    "Fabric": ("lightning", "lightning_fabric"),
    "Accelerator": ("accelerate",),
}
"""Common names that count only where they come from one of these packages."""

FEATURE_BY_QUALIFIED_CALL: Mapping[str, str] = {
    "deepspeed.initialize": "trainer",
    "matplotlib.pyplot.show": "display",
    "cv2.imshow": "display",
    "torch.multiprocessing.spawn": "one-process",
    "torch.sagemaker.init": "process-group",
    "horovod.torch.init": "trainer",
    "horovod.tensorflow.init": "trainer",
    "horovod.tensorflow.keras.init": "trainer",
    "horovod.keras.init": "trainer",
}

FEATURE_BY_NAME: Mapping[str, str] = {
    "local_rank": "device",
    "is_main_process": "rank",
    "is_global_zero": "rank",
    "rank": "rank",
    "global_rank": "rank",
}
"""Variables and attributes that the script reads."""

FEATURE_BY_TEXT: Mapping[str, str] = {
    "LOCAL_RANK": "device",
    "RANK": "rank",
    "cuda": "one-device",
    "cuda:0": "one-device",
}


def find_features(
    tree: ast.Module, imported_names: Mapping[str, str], file: str = ""
) -> dict[str, FeatureLocation]:
    """Return the first location of each feature.

    ``imported_names`` maps names to what they were imported from. ``file`` is empty for the script itself.
    """
    locations: dict[str, FeatureLocation] = {}
    for name, line in _features_of_nodes(tree, imported_names):
        if name not in locations or line < locations[name].line:
            locations[name] = FeatureLocation(line, file)
    return locations


def _features_of_nodes(tree: ast.Module, imported_names: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield each feature that the script's syntax tree shows, with its line. ``imported_names``: qualified
    names by the names that the script imports them under."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _features_of_call(node, imported_names)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value in FEATURE_BY_TEXT:
                yield FEATURE_BY_TEXT[node.value], node.lineno
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id in FEATURE_BY_NAME:
                yield FEATURE_BY_NAME[node.id], node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in FEATURE_BY_NAME:
            yield FEATURE_BY_NAME[node.attr], node.lineno


def _features_of_call(node: ast.Call, imported_names: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Yield each feature that a call shows, with its line. ``imported_names``: see ``_features_of_nodes``."""
    qualified_name = _qualified_name(node.func, imported_names)
    last_part = qualified_name.rpartition(".")[2]
    if qualified_name in FEATURE_BY_QUALIFIED_CALL:
        yield FEATURE_BY_QUALIFIED_CALL[qualified_name], node.lineno
    elif last_part in FEATURE_BY_CALL and (
        last_part not in REQUIRED_PACKAGES or qualified_name.partition(".")[0] in REQUIRED_PACKAGES[last_part]
    ):
        yield FEATURE_BY_CALL[last_part], node.lineno
    if last_part == "cuda" and not node.args:
        yield "one-device", node.lineno
    if last_part == "DataLoader" and any(
        keyword.arg in ("sampler", "batch_sampler") for keyword in node.keywords
    ):
        yield "loader-with-sampler", node.lineno
    if last_part == "DistributedSampler" and not _shuffles(node):
        yield "unshuffled", node.lineno


def _shuffles(node: ast.Call) -> bool:
    """Return whether a DistributedSampler shuffles, which is its default."""
    for keyword in node.keywords:
        if keyword.arg == "shuffle" and isinstance(keyword.value, ast.Constant):
            return bool(keyword.value.value)
    return True


def _qualified_name(function: ast.expr, imported_names: Mapping[str, str]) -> str:
    """Return a name such as ``torch.save``, or ``?.save`` where the object is not an imported name."""
    names: list[str] = []
    current = function
    while isinstance(current, ast.Attribute):
        names.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name):
        names.append(imported_names.get(current.id, current.id if not names else "?"))
    else:
        names.append("?")
    return ".".join(reversed(names))
