"""What a store asks of whatever moves its files, and the ways that can fail."""

from typing import Mapping, NamedTuple, Optional, Sequence

SETTLE_SECONDS = 300.0
"""How long a committed step may still be on its way to S3. SageMaker states no interval for its sync."""


class NotSaved(OSError):
    """A save that failed and left nothing half-written: training can go on, and the next one may succeed."""


class CannotCarry(NotSaved):
    """An upload that S3 did not take, after all tries."""


class CannotLoad(RuntimeError):
    """S3 could not be read, after all tries, or there is no room for what it has. No sign of a torn copy:
    nothing older is taken in its place."""


class Behind(NamedTuple):
    """An upload under way: ``size`` bytes are still to go, none has for ``still`` seconds."""

    size: int
    still: float


class Carrier:
    """How files get from the directory to S3 and back. Names are paths below the checkpoint directory.

    This one does nothing: the directory is all there is.
    """

    remote = False
    """S3 is what counts, not the directory: whatever is wanted is looked for there."""

    settle_seconds = SETTLE_SECONDS
    """How long after its commit a step may still be on its way."""

    def listing(self) -> Mapping[str, int]:
        """Where ``remote``: all files that S3 has, with their sizes. Raises CannotLoad."""
        return {}

    def read(self, name: str) -> bytes:
        """Where ``remote``: a small file's content. KeyError when it is gone, CannotLoad."""
        raise KeyError(name)

    def bring(self, name: str, path: str) -> None:
        """Where ``remote``: copies a file to ``path``. Raises as ``read``."""
        raise KeyError(name)

    def take(self, name: str, path: str, size: int) -> None:
        """Returns when S3 has the file, or when that is somebody else's business. Raises CannotCarry."""

    def delete(self, names: Sequence[str]) -> None:
        """Files that have been deleted here. What cannot be deleted is told and stays: it harms nobody."""

    def behind(self) -> Optional[Behind]:
        """How far uploads are behind; None where nobody can know. From any thread."""
        return None
