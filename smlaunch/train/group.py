"""The ranks that train together, as far as checkpoints need one another: a maximum and a gathering.

A script that trains with ``torch.distributed`` gets :class:`Torch`, a plain one :class:`Alone`; whoever has a
transport of their own hands in an object with the same members. What travels is integers and JSON, no pickle.
"""

import importlib
import json
import os
import sys
from datetime import timedelta
from typing import Any, Callable, List, Mapping, Optional, Protocol, Sequence, Tuple

_BESIDE_TIMEOUT = timedelta(hours=12)

Result = Callable[[], List[int]]
"""Waits for a reduction that was begun, and gives what came out."""


class Group(Protocol):
    """Every method but the properties is collective: all ranks call it, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def begin_max(self, values: Sequence[int]) -> Result:
        """The element-wise maximum over all ranks, of integers within 64 bits; does not wait for it."""

    def gather(self, value: Any) -> List[Any]:
        """What every rank handed in, by rank, on every rank. ``value`` is what JSON can hold."""

    def another(self) -> "Group":
        """The same ranks over connections of their own, for a thread beside the training."""


class Alone:
    """One rank."""

    rank = 0
    world_size = 1

    def begin_max(self, values: Sequence[int]) -> Result:
        own = list(values)
        return lambda: own

    def gather(self, value: Any) -> List[Any]:
        # The same journey as among several, so that what JSON cannot hold is found at a desk.
        return [json.loads(json.dumps(value))]

    def another(self) -> "Alone":
        return self


class Torch:
    """The default group of ``torch.distributed``, over a gloo group of our own: the training's own may be
    NCCL, which moves nothing from the CPU, and must not see foreign collectives between its own."""

    def __init__(self, timeout: Optional[timedelta] = None) -> None:
        """``timeout``: how long a rank waits for the others; None: PyTorch's default, half an hour."""
        import torch.distributed as dist

        self._dist = dist
        self._group = dist.new_group(backend="gloo", timeout=timeout)
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()

    def begin_max(self, values: Sequence[int]) -> Result:
        import torch

        tensor = torch.tensor(list(values), dtype=torch.int64)
        work = self._dist.all_reduce(tensor, op=self._dist.ReduceOp.MAX, group=self._group, async_op=True)

        def result() -> List[int]:
            work.wait()
            return [int(value) for value in tensor.tolist()]

        return result

    def gather(self, value: Any) -> List[Any]:
        import torch

        content = json.dumps(value).encode("ascii")
        longest = self.begin_max([len(content)])()[0]
        own = torch.zeros(longest, dtype=torch.uint8)
        own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        self._dist.all_gather(gathered, own, group=self._group)
        return [json.loads(bytes(row.tolist()).rstrip(b"\0")) for row in gathered]

    def another(self) -> "Torch":
        # One rank may be done hours before another's part is in S3; one that is gone is noticed at once.
        return Torch(_BESIDE_TIMEOUT)


def let_world_end() -> None:
    """So that ``destroy_process_group`` ends the default group; to be called before there is one.

    ``torch.distributed.nn`` has the default group of the moment as default arguments, and PyTorch imports it
    when DistributedDataParallel is first built. Imported then, it holds the group for ever, with gloo's
    threads, and one that is still at work while Python ends aborts its rank: "terminate called without an
    active exception" (torch 2.13: 3 in 180 ranks on a busy machine). Imported before, it holds nothing.
    """
    dist = getattr(sys.modules.get("torch"), "distributed", None)
    if dist is not None and dist.is_available() and not dist.is_initialized():
        importlib.import_module("torch.distributed.nn")


def place(environ: Mapping[str, str] = os.environ) -> Tuple[int, int]:
    """This process's rank, and how many there are. RuntimeError when it is one of several ranks that do not
    know each other yet: each would take itself for the only one, and overwrite what the others keep."""
    dist = _initialised()
    if dist is not None:
        return dist.get_rank(), dist.get_world_size()
    if environ.get("WORLD_SIZE", "1") != "1":
        raise RuntimeError(
            "WORLD_SIZE is {}, and torch.distributed is not initialised: call init_process_group() first, or "
            "hand in a transport of your own as group=".format(environ["WORLD_SIZE"])
        )
    return 0, 1


def find(environ: Mapping[str, str] = os.environ) -> Group:
    """The group this process is in. Collective under torch.distributed. RuntimeError as of ``place``."""
    place(environ)
    return Alone() if _initialised() is None else Torch()


def _initialised() -> Optional[Any]:
    """torch.distributed where the script uses it. Nobody imports torch for a script that does without."""
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None
