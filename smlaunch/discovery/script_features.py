"""Finds the features of a script that show how many accelerators it can use, each with its first line.

Read from the syntax tree, without running the script. Names are resolved as Python would: after ``from
torch.nn.parallel import DistributedDataParallel as DDP``, ``DDP`` is that class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from smlaunch.discovery.source_modules import resolve_qualified_name
from smlaunch.facts.discovered_facts import FeatureLocation

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
    "FullyShardedDataParallelPlugin": "sharded-model",
    "DeepSpeedPlugin": "sharded-model",
    "FSDPStrategy": "sharded-model",
    "DeepSpeedStrategy": "sharded-model",
    "ModelParallelStrategy": "sharded-model",
}
"""By the last part of the called name."""

SHARDING_KEYWORDS = ("fsdp", "fsdp_config", "fsdp_plugin", "deepspeed", "deepspeed_plugin")
"""Keywords by which transformers' TrainingArguments and accelerate's Accelerator shard a model."""

SHARDING_STRATEGIES = ("fsdp", "deepspeed")
"""Beginnings of the names of Lightning's strategies that shard a model, such as deepspeed_stage_3."""

REQUIRED_PACKAGES_BY_CALL: Mapping[str, tuple[str, ...]] = {
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
    syntax_tree: ast.Module, imported_name_by_alias: Mapping[str, str], file: str = ""
) -> dict[str, FeatureLocation]:
    """Return the first location of each feature of a script or module: signs, such as ``process-group``, of
    how it distributes its work (the values of FEATURE_BY_CALL and its like).

    ``imported_name_by_alias``: full names by the names that imports define. ``file`` is recorded with each
    location; empty for the entry script.
    """
    location_by_feature: dict[str, FeatureLocation] = {}
    for feature, line_number in _iter_features_of_nodes(syntax_tree, imported_name_by_alias):
        known_location = location_by_feature.get(feature)
        if known_location is None or line_number < known_location.line:
            location_by_feature[feature] = FeatureLocation(line_number, file)
    return location_by_feature


def _iter_features_of_nodes(
    syntax_tree: ast.Module, imported_name_by_alias: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield each feature that a script's syntax tree shows, with its line number. A feature is a sign, such
    as ``process-group``, of how the script distributes its work. ``imported_name_by_alias``: full names by
    the names that imports define."""
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Call):
            yield from _iter_features_of_call(node, imported_name_by_alias)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value in FEATURE_BY_TEXT:  # such as "LOCAL_RANK"
                yield FEATURE_BY_TEXT[node.value], node.lineno
        elif isinstance(node, ast.Name):
            is_read = isinstance(node.ctx, ast.Load)  # and not assigned; the tables map names to features
            if is_read and node.id in FEATURE_BY_NAME:
                yield FEATURE_BY_NAME[node.id], node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in FEATURE_BY_NAME:
            yield FEATURE_BY_NAME[node.attr], node.lineno


def _iter_features_of_call(
    call: ast.Call, imported_name_by_alias: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield each feature that a call in a script shows, with its line number. A feature is a sign, such as
    ``process-group``, of how the script distributes its work. ``imported_name_by_alias``: full names by the
    names that imports define."""
    qualified_name = resolve_qualified_name(
        call.func, imported_name_by_alias
    )  # such as torch.save, or ?.save
    function_name = qualified_name.rpartition(".")[2]
    if qualified_name in FEATURE_BY_QUALIFIED_CALL:
        yield FEATURE_BY_QUALIFIED_CALL[qualified_name], call.lineno
    # A common name, such as save, counts only in a call of the package in which it has the meaning.
    elif function_name in FEATURE_BY_CALL and _is_from_required_package(qualified_name):
        yield FEATURE_BY_CALL[function_name], call.lineno
    if function_name == "cuda" and not call.args:  # model.cuda() uses the first device
        yield "one-device", call.lineno
    if any(_shards_model(keyword) for keyword in call.keywords):
        yield "sharded-model", call.lineno
    has_own_sampler = any(keyword.arg in ("sampler", "batch_sampler") for keyword in call.keywords)
    if function_name == "DataLoader" and has_own_sampler:
        yield "loader-with-sampler", call.lineno
    # shuffle=False is stated in the call.
    if function_name == "DistributedSampler" and not _is_shuffling_sampler(call):
        yield "unshuffled", call.lineno


def _is_from_required_package(qualified_name: str) -> bool:
    """Return whether a function with a common name, such as ``save``, is of a package for which it has a
    meaning here; True for any other function."""
    package, function_name = qualified_name.partition(".")[0], qualified_name.rpartition(".")[2]
    required_packages = REQUIRED_PACKAGES_BY_CALL.get(function_name)
    return required_packages is None or package in required_packages


def _shards_model(keyword: ast.keyword) -> bool:
    """Return whether an argument asks a trainer library to shard the model. The value of an option, such as
    ``deepspeed=options.deepspeed``, may be none: it does not count."""
    value = keyword.value
    if keyword.arg == "strategy":
        name = value.value if isinstance(value, ast.Constant) else None
        return isinstance(name, str) and name.startswith(SHARDING_STRATEGIES)
    if keyword.arg not in SHARDING_KEYWORDS or isinstance(value, ast.Attribute):
        return False
    return not isinstance(value, ast.Constant) or bool(value.value)


def _is_shuffling_sampler(sampler_call: ast.Call) -> bool:
    """Return whether the DistributedSampler that this call makes shuffles, which is its default."""
    for keyword in sampler_call.keywords:
        if keyword.arg == "shuffle" and isinstance(keyword.value, ast.Constant):
            return bool(keyword.value.value)
    return True
