"""Saving beside the training: one thread per save, one save at a time.

All ranks begin the same saves in the same order. In the thread, over connections of their own, they gather
whose part is durable; the leader commits when all are; everybody hears of it and clears old parts away. The
training itself does not wait for any of this.
"""

import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from smlaunch.protocol.checkpoint import Part
from smlaunch.train import parts
from smlaunch.train.group import Group
from smlaunch.train.snapshot import Shot
from smlaunch.train.store import Store

Fingerprint = List[Tuple[str, int]]


class Saved(NamedTuple):
    """How a save ended. ``problem``: why it was not committed, and training can go on; the next one may
    succeed. ``fatal``: why no save of this training can succeed. ``seconds``: until it was durable."""

    step: int
    seconds: float
    problem: Optional[str] = None
    fatal: Optional[str] = None


class Saver:
    def __init__(self, store: Store, group: Group, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._thread: Optional[threading.Thread] = None
        self._saved: Optional[Saved] = None
        self.committed: Optional[int] = None
        """The newest step that this process knows to be committed."""

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, shot: Shot, samples: Optional[int], prints: Optional[Fingerprint]) -> None:
        """``samples``: used by all ranks so far. ``prints``: to be compared over the ranks."""
        self.wait()
        self._saved = None
        # A daemon: a training that fails must not hang at its end on ranks that are gone.
        self._thread = threading.Thread(
            target=self._run, args=(shot, samples, prints), name="smlaunch-save", daemon=True
        )
        self._thread.start()

    def wait(self, timeout: Optional[float] = None) -> None:
        """``timeout`` in seconds; without one it returns when the save is over."""
        if self._thread is not None:
            self._thread.join(timeout)

    def take(self) -> Optional[Saved]:
        """How the last save ended; once, and not before it has."""
        if self.busy:
            return None
        saved, self._saved = self._saved, None
        return saved

    def _run(self, shot: Shot, samples: Optional[int], prints: Optional[Fingerprint]) -> None:
        step = int(shot.document["step"])
        began = self._clock()
        try:
            problem, fatal = self._save(step, shot, samples, prints)
        except Exception as error:
            # Whatever it is, the training thread is where it has to be raised.
            problem, fatal = None, "{}: {}".format(type(error).__name__, error)
        if problem is None and fatal is None:
            self.committed = step
        self._saved = Saved(step, self._clock() - began, problem, fatal)

    def _save(
        self, step: int, shot: Shot, samples: Optional[int], prints: Optional[Fingerprint]
    ) -> Tuple[Optional[str], Optional[str]]:
        row: Dict[str, Any] = {"layout": shot.layout, "prints": prints}
        try:
            encoded = parts.encode(shot.document)
            row["part"] = self._store.write(step, encoded.chunks(), encoded.size)
        except OSError as error:
            row["problem"] = str(error)
        except parts.CannotKeep as error:
            row["fatal"] = "what cannot be kept:\n" + str(error)
        rows = self._group.gather(row)
        fatal = _first(rows, "fatal") or _differing(rows)
        problem = _first(rows, "problem")
        if fatal or problem:
            return problem, fatal
        said: Dict[str, Any] = {}
        if self._store.leads:
            try:
                self._store.commit(step, [Part(*row["part"]) for row in rows], samples)
            except OSError as error:
                said["problem"] = str(error)
        problem = _first(self._group.gather(said), "problem")
        if problem is None:
            self._store.remember(step)
            self._store.retain()
        return problem, None


def _first(rows: List[Dict[str, Any]], key: str) -> Optional[str]:
    for rank, row in enumerate(rows):
        if row.get(key):
            return "rank {}: {}".format(rank, row[key])
    return None


def _differing(rows: List[Dict[str, Any]]) -> Optional[str]:
    for rank, row in enumerate(rows):
        if row["layout"] != rows[0]["layout"]:
            return (
                "ranks 0 and {} do not have the same parameters and optimizer state (names, shapes)".format(
                    rank
                )
            )
        for (name, ours), (_, theirs) in zip(rows[0]["prints"] or (), row["prints"] or ()):
            if ours != theirs:
                return (
                    "{} is not the same on ranks 0 and {}, and is kept only once: train it with "
                    "DistributedDataParallel or FSDP; if it is one of shared=, leave it out there".format(
                        name, rank
                    )
                )
    return None
