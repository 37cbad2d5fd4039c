"""The ranks that train together, as checkpoints need them: a maximum and a gather.

A script that trains with ``torch.distributed`` gets :class:`TorchGroup`, a plain one
:class:`SingleRankGroup`; a script with another transport passes an object with the same members. Integers and
JSON are exchanged, no pickle.
"""

import importlib
import json
import os
import sys
from datetime import timedelta
from typing import Any, Callable, List, Mapping, Optional, Protocol, Sequence, Tuple

_SAVE_TIMEOUT = timedelta(hours=12)

PendingMax = Callable[[], List[int]]
"""Waits for a reduction that was started, and returns its result."""


class RankGroup(Protocol):
    """Every method is collective: all ranks call it, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def begin_max(self, values: Sequence[int]) -> PendingMax:
        """Start an element-wise maximum over all ranks, of 64-bit integers, without waiting for it."""

    def gather(self, value: Any) -> List[Any]:
        """Return every rank's value, by rank, on every rank. ``value`` must be JSON."""

    def new_group(self) -> "RankGroup":
        """Return the same ranks over separate connections, for a thread beside the training."""


class SingleRankGroup:
    """A group of one rank."""

    rank = 0
    world_size = 1

    def begin_max(self, values: Sequence[int]) -> PendingMax:
        own = list(values)
        return lambda: own

    def gather(self, value: Any) -> List[Any]:
        # Encoded as among several ranks, so that values that JSON cannot hold are found with one rank too.
        return [json.loads(json.dumps(value))]

    def new_group(self) -> "SingleRankGroup":
        return self


class TorchGroup:
    """The default group of ``torch.distributed``, over a gloo group of our own: the training's own may be
    NCCL, which cannot send from the CPU, and must not see other collectives between its own."""

    def __init__(self, timeout: Optional[timedelta] = None) -> None:
        """``timeout``: how long a rank waits for the others; None: PyTorch's default, half an hour."""
        import torch.distributed as dist

        self._dist = dist
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def begin_max(self, values: Sequence[int]) -> PendingMax:
        import torch

        tensor = torch.tensor(list(values), dtype=torch.int64)
        reduction = self._dist.all_reduce(
            tensor, op=self._dist.ReduceOp.MAX, group=self._group, async_op=True
        )

        def result() -> List[int]:
            reduction.wait()
            return [int(value) for value in tensor.tolist()]

        return result

    def gather(self, value: Any) -> List[Any]:
        import torch

        content = json.dumps(value).encode("ascii")
        longest = self.begin_max([len(content)])()[0]
        own_bytes = torch.zeros(longest, dtype=torch.uint8)
        own_bytes[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        gathered = [torch.empty_like(own_bytes) for _ in range(self.world_size)]
        self._dist.all_gather(gathered, own_bytes, group=self._group)
        return [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in gathered]

    def new_group(self) -> "TorchGroup":
        # A rank may finish hours before another's shard is in S3; a rank that is gone is noticed at once.
        return TorchGroup(_SAVE_TIMEOUT)


def preload_distributed_nn() -> None:
    """Import ``torch.distributed.nn`` before there is a process group, so that ``destroy_process_group`` ends
    the default group.

    ``torch.distributed.nn`` has the current default group as default arguments, and PyTorch imports it when
    DistributedDataParallel is first created. Imported then, it holds the group forever, with gloo's threads,
    and a thread that still runs while Python ends aborts its rank: "terminate called without an active
    exception" (torch 2.13: 3 in 180 ranks on a busy machine). Imported earlier, it holds no group.
    """
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    if dist is not None and dist.is_available() and not dist.is_initialized():
        importlib.import_module("torch.distributed.nn")


def rank_and_world_size(environ: Mapping[str, str] = os.environ) -> Tuple[int, int]:
    """Return this process's rank and the number of ranks. Raises RuntimeError if it is one of several ranks
    that are not connected yet: each would take itself for the only one, and overwrite what the others save.
    """
    dist = _initialised_distributed()
    if dist is not None:
        return dist.get_rank(), dist.get_world_size()
    if environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError(
            "WORLD_SIZE is {}, and torch.distributed is not initialised: call init_process_group() first, or "
            "pass a transport of your own as group=".format(environ["WORLD_SIZE"])
        )
    return 0, 1


def find_group(environ: Mapping[str, str] = os.environ) -> RankGroup:
    """Return the group this process is in. Collective under torch.distributed. Raises RuntimeError as
    ``rank_and_world_size``."""
    rank_and_world_size(environ)
    return SingleRankGroup() if _initialised_distributed() is None else TorchGroup()


def _initialised_distributed() -> Optional[Any]:
    """Return torch.distributed if the script has initialised it. Does not import torch."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
