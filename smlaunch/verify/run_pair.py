"""Two runs of one script that are compared, and one difference between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from smlaunch.verify.archive_contents import ArtifactFiles
from smlaunch.verify.step_traces import RankTrace


@dataclass(frozen=True)
class RunRecord:
    """One run as it happened."""

    job_names: tuple[str, ...]
    trace_by_rank: Mapping[int, RankTrace]
    artifact_files: ArtifactFiles = field(default_factory=dict)
    """Files of the last job."""
    artifact_files_of_earlier_jobs: tuple[ArtifactFiles | None, ...] = ()
    """Files of each earlier job; None for a failed job, whose output the service does not store."""

    @property
    def last_step(self) -> int:
        return max((rank_trace.last_step for rank_trace in self.trace_by_rank.values()), default=0)

    @property
    def has_step_traces(self) -> bool:
        return bool(self.trace_by_rank)

    @property
    def component_names(self) -> set[str]:
        """The components whose state the ranks have traced at the end."""
        return {name for trace in self.trace_by_rank.values() for name in trace.final_digest_by_component}

    @property
    def generator_names(self) -> set[str]:
        """The random number generators whose state the ranks have traced at the start."""
        return {name for trace in self.trace_by_rank.values() for name in trace.initial_digest_by_generator}


class RunDifference(NamedTuple):
    """One difference between the baseline and the resumed run. ``kind`` "run": the resumed run did not reach
    its end."""

    kind: Literal["run", "ranks", "steps", "state", "file"]
    name: str = ""
    """Name of a component or a file."""
    value_path: str = ""
    """Path of the value among the values that the file holds, such as ``layers.0.weight``."""
    description: str = ""
    """How it differs, for a message; of a whole file ``missing`` from the resumed run, or ``only`` there."""
    is_weight_like: bool = True
    """The value is as large as weights are."""
    short_value_texts: tuple[str, ...] = ()
    """The value in the unsplit and in the resumed run, as text; an empty text for a long or missing one."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.name, self.value_path


class TracePair(NamedTuple):
    """The traces of one rank in both runs."""

    baseline: RankTrace
    resumed: RankTrace


class RunPair(NamedTuple):
    """The baseline, an uninterrupted run, and a run that was interrupted on purpose and resumed."""

    baseline: RunRecord
    resumed: RunRecord

    @property
    def traces_by_rank(self) -> dict[int, TracePair]:
        """The traces of the ranks that both runs have, in the order of ranks."""
        return {
            rank: TracePair(trace, self.resumed.trace_by_rank[rank])
            for rank, trace in sorted(self.baseline.trace_by_rank.items())
            if rank in self.resumed.trace_by_rank
        }
