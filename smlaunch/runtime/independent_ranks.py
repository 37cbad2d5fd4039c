"""Ranks that train apart from each other (share-nothing): each may come to its end in another segment.

All of them are started in every segment, so that one that has finished and kept its checkpoint saves its
result beside those of the others. One that removed its checkpoint trains anew; its earlier end still counts.
"""

from typing import TYPE_CHECKING, Callable, Mapping, NamedTuple, Optional, Sequence

from smlaunch.contract.segment import Segment
from smlaunch.runtime.cluster import Cluster

if TYPE_CHECKING:
    from smlaunch.runtime.host_outcome import FinishedProcess
    from smlaunch.runtime.segment_lifecycle import SegmentEnd


class IndependentRanks(NamedTuple):
    """The ranks of this host, and how many there are elsewhere."""

    ranks_per_host: int
    total: int
    """Ranks on all hosts."""

    finished: Mapping[int, str]
    """Ranks of this host that have trained to their end, from 0, and the newest job in which they did."""

    finished_elsewhere: int = 0
    """Ranks of other hosts that did so before this job."""

    @property
    def all_finished(self) -> bool:
        """Whether the ranks of all hosts have finished, as far as this host knows."""
        return len(self.finished) + self.finished_elsewhere >= self.total

    def after(
        self,
        processes: "Sequence[FinishedProcess]",
        segment_end: "SegmentEnd",
        job: str,
        may_read_stop_file: Callable[[], bool],
    ) -> "IndependentRanks":
        """With the ranks that came to their end in this job: those that exited with 0 and were not perhaps
        asked to exit. ``processes``: in the order of their ranks.
        """
        finished = dict(self.finished)
        for rank, process in enumerate(processes):
            exited_unasked = not segment_end.was_requested_before(process.ended_at) or not (
                segment_end.was_signalled_before(process.ended_at) or may_read_stop_file()
            )
            if process.status == 0 and exited_unasked:
                finished[rank] = job
        return self._replace(finished=finished)

    def after_all_finished(self, job: str) -> "IndependentRanks":
        """With all ranks of this host."""
        return self._replace(finished=dict.fromkeys(range(self.ranks_per_host), job))


def read_independent_ranks(
    segment: Segment, cluster: Cluster, ranks_per_host: int
) -> Optional[IndependentRanks]:
    """Return what earlier segments have left. None where there is one rank, or no checkpoint directory.
    Raises SetupError.
    """
    total = len(cluster.hosts) * ranks_per_host
    if segment.checkpoint_dir is None or total == 1:
        return None
    from smlaunch.runtime.outcome_files import read_ranks_of_hosts

    finished: Mapping[int, str] = {}
    finished_elsewhere = 0
    for ranks in read_ranks_of_hosts(segment):
        # With another number of ranks, each has another share of the data.
        if ranks.independent_ranks != total or ranks.host not in cluster.hosts:
            continue
        of_host = {rank: job for rank, job in ranks.finished_ranks if rank < ranks_per_host}
        if ranks.host == cluster.current_host:
            finished = of_host
        else:
            finished_elsewhere += len(of_host)
    return IndependentRanks(ranks_per_host, total, finished, finished_elsewhere)
