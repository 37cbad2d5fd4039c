"""Save beside the training: one thread per save, one save at a time.

All ranks start the same saves in the same order. In the thread, over separate connections, they gather whose
shard is durable. The leader commits when all are; every rank then records the commit and deletes old shards.
The training does not wait for any of this.
"""

import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from smlaunch.contract.checkpoint_layout import Shard
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
    fatal_problem: Optional[str] = None
    """Why no save of this training can succeed."""


class _SaveProblems(NamedTuple):
    """Why a checkpoint was not committed; as in SaveResult."""

    problem: Optional[str]
    fatal_problem: Optional[str] = None


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

    def start_save(
        self, snapshot: Snapshot, total_samples: Optional[int], tensor_sums: Optional[TensorSums]
    ) -> None:
        """Save the snapshot in a thread, after the previous save. ``total_samples``: used by all ranks so
        far. ``tensor_sums``: sums of the shared tensors, to be compared between the ranks; None: not
        compared."""
        self.wait_for_save()
        self._result = None
        # A daemon: a training that fails must not wait at its end for ranks that are gone.
        self._thread = threading.Thread(
            target=self._run_save,
            args=(snapshot, total_samples, tensor_sums),
            name="smlaunch-save",
            daemon=True,
        )
        self._thread.start()

    def wait_for_save(self, timeout_seconds: Optional[float] = None) -> None:
        """Wait for the save, at most ``timeout_seconds``; None: until it ends."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)

    def take_save_result(self) -> Optional[SaveResult]:
        """Return the result of the last save, once; None before it ends."""
        if self.is_saving:
            return None
        result, self._result = self._result, None
        return result

    def _run_save(
        self, snapshot: Snapshot, total_samples: Optional[int], tensor_sums: Optional[TensorSums]
    ) -> None:
        """Save one snapshot in the thread, and record the result."""
        step = int(snapshot.document["step"])
        started_at = self._clock()
        try:
            problems = self._save_on_all_ranks(step, snapshot, total_samples, tensor_sums)
        except Exception as error:
            # Any error has to be raised in the training thread.
            problems = _SaveProblems(None, "{}: {}".format(type(error).__name__, error))
        if problems.problem is None and problems.fatal_problem is None:
            self.committed_step = step
        self._result = SaveResult(step, self._clock() - started_at, problems.problem, problems.fatal_problem)

    def _save_on_all_ranks(
        self, step: int, snapshot: Snapshot, total_samples: Optional[int], tensor_sums: Optional[TensorSums]
    ) -> _SaveProblems:
        """Write this rank's shard of the checkpoint; when all ranks have written theirs, the leader (rank 0)
        commits the step. Return what prevented that. Collective: every rank saves the same step.

        ``total_samples``: used by all ranks so far; ``tensor_sums``: name and sum of each shared tensor, to
        be compared between the ranks, or None.
        """
        # The layout is the names and shapes of the shared tensors.
        report: Dict[str, Any] = {"layout_sha256": snapshot.layout_sha256, "tensor_sums": tensor_sums}
        report.update(self._write_own_shard(step, snapshot))  # adds the shard, or a problem
        reports_by_rank = self._group.gather(report)
        # gather() gives every rank the reports of all of them, so all return the same.
        fatal_problem = _find_first_problem(reports_by_rank, "fatal_problem")
        fatal_problem = fatal_problem or _describe_shared_state_difference(reports_by_rank)
        problem = _find_first_problem(reports_by_rank, "problem")
        if fatal_problem or problem:
            return _SaveProblems(problem, fatal_problem)
        # Only the leader commits, and reports a problem if it cannot; all ranks wait here for its report.
        commit_report = (
            self._commit_step(step, reports_by_rank, total_samples) if self._store.is_leader else {}
        )
        problem = _find_first_problem(self._group.gather(commit_report), "problem")
        if problem is None:
            # Each rank deletes its own shards of old steps, which this committed one replaces.
            self._store.mark_committed(step)
            self._store.delete_old_steps()
        return _SaveProblems(problem)

    def _write_own_shard(self, step: int, snapshot: Snapshot) -> Dict[str, Any]:
        """Write this rank's shard; return what it reports to the others: ``shard``, or why there is none as
        ``problem`` (of this save) or ``fatal_problem`` (of every save)."""
        try:
            encoded = tree_format.encode_tree(snapshot.document)
            return {"shard": self._store.write_shard(step, encoded.chunks(), encoded.size_bytes)}
        except OSError as error:
            return {"problem": str(error)}
        except tree_format.UnstorableValueError as error:
            return {"fatal_problem": "values that cannot be saved:\n" + str(error)}

    def _commit_step(
        self, step: int, reports_by_rank: List[Dict[str, Any]], total_samples: Optional[int]
    ) -> Dict[str, Any]:
        """Commit the step with the shards that the ranks report; return ``problem`` if that fails."""
        try:
            # Shards are gathered as JSON, so as lists of their fields.
            shards = [Shard(*rank_report["shard"]) for rank_report in reports_by_rank]
            self._store.commit(step, shards, total_samples)
        except OSError as error:
            return {"problem": str(error)}
        return {}


def _find_first_problem(reports_by_rank: List[Dict[str, Any]], key: str) -> Optional[str]:
    """Return the first rank's entry under this key, with the rank's number."""
    for rank, report in enumerate(reports_by_rank):
        if report.get(key):
            return "rank {}: {}".format(rank, report[key])
    return None


def _describe_shared_state_difference(reports_by_rank: List[Dict[str, Any]]) -> Optional[str]:
    """Return how the shared state (equal on all ranks, since it is saved only once) differs between the
    ranks; None if it is equal.

    ``reports_by_rank``: of each rank, a hash of its shared tensors' names and shapes (``layout_sha256``), and
    name and sum of each tensor (``tensor_sums``; None if they are not compared in this save).
    """
    leader_report = reports_by_rank[0]  # every rank is compared with rank 0
    for rank, report in enumerate(reports_by_rank):
        if report["layout_sha256"] != leader_report["layout_sha256"]:
            return (
                "ranks 0 and {} do not have the same parameters and optimizer state (names, shapes)".format(
                    rank
                )
            )
        # Equal layouts: both lists have the same tensors in the same order.
        sum_pairs = zip(leader_report["tensor_sums"] or (), report["tensor_sums"] or ())
        for (name, leader_sum), (_, rank_sum) in sum_pairs:
            if leader_sum != rank_sum:
                return (
                    "{} differs between ranks 0 and {}, but is saved only once: train it with "
                    "DistributedDataParallel or FSDP; if it is in shared=, remove it there".format(name, rank)
                )
    return None
