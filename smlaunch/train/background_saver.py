"""Save beside the training: one thread per save, one save at a time.

All ranks start the same saves in the same order. In the thread, over separate connections, they gather whose
shard is durable. The leader commits when all are; every rank then records the commit and deletes old shards.
The training does not wait for any of this.
"""

import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from smlaunch.contract.checkpoint import Shard
from smlaunch.train import tree_format
from smlaunch.train.checkpoint_store import CheckpointStore
from smlaunch.train.rank_group import RankGroup
from smlaunch.train.snapshot import Snapshot

TensorSums = List[Tuple[str, int]]


class SaveResult(NamedTuple):
    """How a save ended."""

    step: int
    seconds: float
    """Until it was durable."""
    problem: Optional[str] = None
    """Why it was not committed; training can continue, and the next save may succeed."""
    fatal: Optional[str] = None
    """Why no save of this training can succeed."""


class BackgroundSaver:
    def __init__(
        self, store: CheckpointStore, group: RankGroup, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._group = group
        self._clock = clock
        self._thread: Optional[threading.Thread] = None
        self._result: Optional[SaveResult] = None
        self.committed_step: Optional[int] = None
        """The newest step that this process knows to be committed."""

    @property
    def is_saving(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, snapshot: Snapshot, samples: Optional[int], sums: Optional[TensorSums]) -> None:
        """``samples``: used by all ranks so far. ``sums``: to be compared between the ranks."""
        self.wait()
        self._result = None
        # A daemon: a training that fails must not wait at its end for ranks that are gone.
        self._thread = threading.Thread(
            target=self._run_save, args=(snapshot, samples, sums), name="smlaunch-save", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_seconds: Optional[float] = None) -> None:
        """Wait for the save, at most ``timeout_seconds``; None: until it ends."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take_result(self) -> Optional[SaveResult]:
        """Return the result of the last save, once; None before it ends."""
        if self.is_saving:
            return None
        result, self._result = self._result, None
        return result

    def _run_save(self, snapshot: Snapshot, samples: Optional[int], sums: Optional[TensorSums]) -> None:
        """Save one snapshot in the thread, and record the result."""
        step = int(snapshot.document["step"])
        started_at = self._clock()
        try:
            problem, fatal = self._save_on_all_ranks(step, snapshot, samples, sums)
        except Exception as error:
            # Any error has to be raised in the training thread.
            problem, fatal = None, "{}: {}".format(type(error).__name__, error)
        if problem is None and fatal is None:
            self.committed_step = step
        self._result = SaveResult(step, self._clock() - started_at, problem, fatal)

    def _save_on_all_ranks(
        self, step: int, snapshot: Snapshot, samples: Optional[int], sums: Optional[TensorSums]
    ) -> Tuple[Optional[str], Optional[str]]:
        """Write this rank's shard, and commit when all ranks have. Return a problem and a fatal problem, or
        None for each."""
        row: Dict[str, Any] = {"layout": snapshot.layout_sha256, "prints": sums}
        try:
            encoded = tree_format.encode(snapshot.document)
            row["part"] = self._store.write_shard(step, encoded.chunks(), encoded.size_bytes)
        except OSError as error:
            row["problem"] = str(error)
        except tree_format.UnstorableValueError as error:
            row["fatal"] = "values that cannot be saved:\n" + str(error)
        rows = self._group.gather(row)
        fatal = _first_problem(rows, "fatal") or _difference(rows)
        problem = _first_problem(rows, "problem")
        if fatal or problem:
            return problem, fatal
        commit_row: Dict[str, Any] = {}
        if self._store.is_leader:
            try:
                self._store.commit(step, [Shard(*row["part"]) for row in rows], samples)
            except OSError as error:
                commit_row["problem"] = str(error)
        problem = _first_problem(self._group.gather(commit_row), "problem")
        if problem is None:
            self._store.mark_committed(step)
            self._store.delete_old_steps()
        return problem, None


def _first_problem(rows: List[Dict[str, Any]], key: str) -> Optional[str]:
    """Return the first rank's entry under this key, with the rank's number."""
    for rank, row in enumerate(rows):
        if row.get(key):
            return "rank {}: {}".format(rank, row[key])
    return None


def _difference(rows: List[Dict[str, Any]]) -> Optional[str]:
    """Return how the ranks' shared state differs, or None if it is equal."""
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
                    "{} differs between ranks 0 and {}, but is saved only once: train it with "
                    "DistributedDataParallel or FSDP; if it is in shared=, remove it there".format(name, rank)
                )
    return None
