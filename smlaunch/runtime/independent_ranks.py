"""Ranks that train apart from each other (share-nothing): each may come to its end in another segment.

All of them are started in every segment, so that one that has finished and kept its checkpoint saves its
result beside those of the others. One that removed its checkpoint trains anew; its earlier end still counts.
"""

from typing import TYPE_CHECKING, Callable, Mapping, NamedTuple, Optional, Sequence

from smlaunch.contract.segment import Segment
from smlaunch.runtime.cluster import Cluster

if TYPE_CHECKING:
    from smlaunch.runtime.host_outcome import FinishedProcess
    from smlaunch.runtime.segment_lifecycle import SegmentDeadline


class IndependentRanks(NamedTuple):
    """The ranks of this host, and how many there are elsewhere."""

    ranks_per_host: int
    total_ranks: int
    """Ranks on all hosts."""

    job_by_finished_rank: Mapping[int, str]
    """Ranks of this host that have trained to their end, from 0, and the newest job in which they did."""

    finished_ranks_elsewhere: int = 0
    """Ranks of other hosts that did so before this job."""

    @property
    def have_all_finished(self) -> bool:
        """Whether the ranks of all hosts have finished, as far as this host knows."""
        return len(self.job_by_finished_rank) + self.finished_ranks_elsewhere >= self.total_ranks

    def with_ranks_finished_now(
        self,
        processes: "Sequence[FinishedProcess]",
        segment_deadline: "SegmentDeadline",
        job: str,
        may_read_stop_file: Callable[[], bool],
    ) -> "IndependentRanks":
        """Return these ranks with those added that have trained to their end in this job: they exited with 0,
        and did not exit because they were asked to.

        ``processes``: in the order of their ranks. ``may_read_stop_file``: whether the script may read the
        file that asks it to exit; called only where that matters.
        """
        job_by_finished_rank = dict(self.job_by_finished_rank)
        for rank, process in enumerate(processes):
            may_have_been_asked = segment_deadline.was_stop_requested_before(process.ended_at) and (
                segment_deadline.was_stop_signal_sent_before(process.ended_at) or may_read_stop_file()
            )
            if process.status == 0 and not may_have_been_asked:
                job_by_finished_rank[rank] = job
        return self._replace(job_by_finished_rank=job_by_finished_rank)

    def with_all_finished_now(self, job: str) -> "IndependentRanks":
        """With all ranks of this host."""
        return self._replace(job_by_finished_rank=dict.fromkeys(range(self.ranks_per_host), job))


def read_independent_ranks(
    segment: Segment, cluster: Cluster, ranks_per_host: int
) -> Optional[IndependentRanks]:
    """Return which of the job's independent ranks (they train separate models) have finished in earlier
    segments, by the files that the hosts wrote beside the checkpoints. A segment is one job of a chain, and
    trains on from the checkpoints of the last one. None where there is one rank, or no checkpoint directory.
    Raises SetupError.
    """
    total_ranks = len(cluster.hosts) * ranks_per_host
    if segment.checkpoint_dir is None or total_ranks == 1:
        return None
    from smlaunch.runtime.segment_outcome_files import read_ranks_of_hosts

    job_by_finished_rank: Mapping[int, str] = {}
    finished_ranks_elsewhere = 0
    for ranks_of_host in read_ranks_of_hosts(segment):
        # With another number of ranks, each has another share of the data, and starts from the beginning.
        if ranks_of_host.independent_ranks != total_ranks or ranks_of_host.host not in cluster.hosts:
            continue
        # Each host numbers its ranks from 0 here; ``job`` is the one in which the rank finished.
        finished_on_host = {rank: job for rank, job in ranks_of_host.finished_ranks if rank < ranks_per_host}
        if ranks_of_host.host == cluster.current_host:
            job_by_finished_rank = finished_on_host
        else:
            finished_ranks_elsewhere += len(finished_on_host)
    return IndependentRanks(
        ranks_per_host=ranks_per_host,
        total_ranks=total_ranks,
        job_by_finished_rank=job_by_finished_rank,
        finished_ranks_elsewhere=finished_ranks_elsewhere,
    )
