"""A trainer library's own checkpoint, whatever files it is, as one component of ours.

Each rank keeps the files that the library writes on it: of what all ranks share usually rank 0 alone. They
are held in memory while they are written, which is the price of a library that knows files only.
"""

import os
import tempfile
from typing import Any, Callable, Dict, List, Mapping, Optional

import torch

from smlaunch.train import group as groups

Write = Callable[[str], None]
"""Lets the library write its checkpoint into an empty directory; called on all ranks at the same step."""


class Files:
    """Register it with the Checkpointer; ``lay_out`` gives the files back where the library can read them."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._restored: Optional[Mapping[str, Any]] = None
        self._held: Optional[Dict[str, Any]] = None

    def hold(self) -> None:
        """Takes the state now for the save at the end: a library that is told to stop tidies up before it
        returns, and what it would write then is another place in the training. Collective."""
        self._held = self.state_dict()

    def state_dict(self) -> Dict[str, Any]:
        if self._held is not None:
            return self._held
        with tempfile.TemporaryDirectory(prefix="smlaunch-") as folder:
            self._write(folder)
            return {name: _read(os.path.join(folder, name)) for name in _names(folder)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restored = state

    def lay_out(self, folder: str) -> bool:
        """Writes what was restored below ``folder``, which is this rank's own; False when nothing was.

        Collective: a rank gets the files of rank 0 as well, under its own where names are the same.
        """
        if self._restored is None:
            return False
        for files in (_from_first(self._restored), self._restored):
            for name, content in files.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(bytes(memoryview(_bytes(content).numpy())))
        self._restored = None
        return True


def _from_first(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """What rank 0 has restored, on every rank."""
    rank, world_size = groups.place()
    if world_size == 1:
        return own
    import torch.distributed as dist

    # The default group may be NCCL, which moves nothing from the CPU.
    gloo = dist.new_group(backend="gloo")
    names: List[Any] = [[(name, len(_bytes(content))) for name, content in own.items()]]
    dist.broadcast_object_list(names, group=gloo)
    found = {}
    for name, size in names[0]:
        content = _bytes(own[name]).clone() if rank == 0 else torch.empty(size, dtype=torch.uint8)
        dist.broadcast(content, 0, group=gloo)
        found[name] = content
    dist.destroy_process_group(gloo)
    return found


def _bytes(content: Any) -> torch.Tensor:
    return torch.as_tensor(content, dtype=torch.uint8)


def _names(folder: str) -> List[str]:
    found = []
    for directory, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(directory, name), folder) for name in names]
    return sorted(found)


def _read(path: str) -> torch.Tensor:
    with open(path, "rb") as file:
        content = bytearray(file.read())
    return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
