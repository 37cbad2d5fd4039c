"""What in a script tells how many accelerators it can use: each thing with the line where it first stands.

Read from the syntax tree, without running anything. A name is what Python would bind it to: ``DDP`` after
``from torch.nn.parallel import DistributedDataParallel as DDP`` is the class it stands for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from smlaunch.planning.surroundings import Sign

CALLS: Mapping[str, str] = {
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
    "part_files": "sampler",
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
"""The last word of what is called, and the sign it is."""

ONLY_OF: Mapping[str, tuple[str, ...]] = {
    "DataLoader": ("torch",),
    "DataParallel": ("torch",),
    "save": ("torch",),
    "Trainer": ("lightning", "pytorch_lightning", "transformers", "composer", "trl"),
    "Fabric": ("lightning", "lightning_fabric"),
    "Accelerator": ("accelerate",),
}
"""Common words: they count only where they come from one of these packages."""

WHOLE: Mapping[str, str] = {
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

NAMES: Mapping[str, str] = {
    "local_rank": "device",
    "is_main_process": "rank",
    "is_global_zero": "rank",
    "rank": "rank",
    "global_rank": "rank",
}
"""Variables and attributes that are looked at."""

TEXTS: Mapping[str, str] = {
    "LOCAL_RANK": "device",
    "RANK": "rank",
    "cuda": "one-device",
    "cuda:0": "one-device",
}


def signs(tree: ast.Module, bound: Mapping[str, str], file: str = "") -> dict[str, Sign]:
    """The first sign of every name. ``bound``: what imported names stand for; ``file``: where that is, empty
    for the script itself."""
    found: dict[str, Sign] = {}
    for name, line in _all(tree, bound):
        if name not in found or line < found[name].line:
            found[name] = Sign(line, file)
    return found


def _all(tree: ast.Module, bound: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _call(node, bound)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value in TEXTS:
                yield TEXTS[node.value], node.lineno
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id in NAMES:
                yield NAMES[node.id], node.lineno
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield NAMES[node.attr], node.lineno


def _call(node: ast.Call, bound: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    whole = _whole(node.func, bound)
    last = whole.rpartition(".")[2]
    if whole in WHOLE:
        yield WHOLE[whole], node.lineno
    elif last in CALLS and (last not in ONLY_OF or whole.partition(".")[0] in ONLY_OF[last]):
        yield CALLS[last], node.lineno
    if last == "cuda" and not node.args:
        yield "one-device", node.lineno
    if last == "DataLoader" and any(word.arg in ("sampler", "batch_sampler") for word in node.keywords):
        yield "loader-with-sampler", node.lineno
    if last == "DistributedSampler" and not _shuffles(node):
        yield "unshuffled", node.lineno


def _shuffles(node: ast.Call) -> bool:
    """DistributedSampler shuffles unless it is told not to."""
    for word in node.keywords:
        if word.arg == "shuffle" and isinstance(word.value, ast.Constant):
            return bool(word.value.value)
    return True


def _whole(function: ast.expr, bound: Mapping[str, str]) -> str:
    """``torch.save``; ``?.save`` where what stands before is not an imported name."""
    names: list[str] = []
    current = function
    while isinstance(current, ast.Attribute):
        names.append(current.attr)
        current = current.value
    if isinstance(current, ast.Name):
        names.append(bound.get(current.id, current.id if not names else "?"))
    else:
        names.append("?")
    return ".".join(reversed(names))
