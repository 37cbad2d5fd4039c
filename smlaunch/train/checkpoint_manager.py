"""Save and restore a training's checkpoints, on one rank."""

import time
from typing import Any, Dict, List, Mapping, Optional

from smlaunch.contract.segment import Segment
from smlaunch.train import checkpoint_loader, snapshot
from smlaunch.train.background_saver import BackgroundSaver
from smlaunch.train.checkpoint_store import CheckpointStore
from smlaunch.train.components import LOOP_STATE, Component
from smlaunch.train.progress_reporter import ProgressReporter
from smlaunch.train.rank_group import RankGroup
from smlaunch.train.save_interval import SaveInterval
from smlaunch.train.snapshot import Snapshotter
from smlaunch.train.transports import open_transport


class CheckpointManager:
    """Every method except ``is_saving``, ``has_failed``, ``wait_for_save`` and ``write_outcome`` is
    collective. ``interval`` learns what saves cost."""

    def __init__(
        self,
        segment: Segment,
        group: RankGroup,
        components: List[Component],
        interval: SaveInterval,
        reporter: ProgressReporter,
    ) -> None:
        """Raises OSError if the directory cannot be used."""
        assert segment.checkpoint_dir is not None
        self._segment = segment
        self._group = group
        self._components = components
        self._interval = interval
        self._reporter = reporter
        self._store = CheckpointStore(
            segment.checkpoint_dir,
            group.rank,
            group.world_size,
            keep=segment.keep_steps,
            job=segment.job,
            writer=segment.writer,
            transport=open_transport(segment),
        )
        self._snapshotter = Snapshotter(group.rank, group.world_size)
        # All ranks must create connections in the same order: so here, and not when the first save begins.
        self._saver = BackgroundSaver(self._store, group.new_group())
        self._stall_seconds = 0.0
        self._sums_compared = False
        self._fatal_problem: Optional[str] = None
        self.last_step: Optional[int] = None
        """The newest step that a save was started for, or that was restored."""

    @property
    def is_saving(self) -> bool:
        return self._saver.is_saving

    @property
    def has_failed(self) -> bool:
        """Whether no save can succeed; ``finish_save`` raises the reason."""
        return self._fatal_problem is not None

    def restore(self) -> Optional[Mapping[str, Any]]:
        """Restore the newest checkpoint and return its ``loop_state`` as given to ``save``; None without a
        checkpoint. Raises ValueError if a checkpoint does not fit the script."""
        loadable = checkpoint_loader.find_checkpoint(self._store, self._group)
        if loadable is None:
            return None
        for rejection in loadable.rejected:
            self._reporter.print_message("not loaded: {}".format(rejection))
        manifest = loadable.manifest
        loop_state: Mapping[str, Any] = checkpoint_loader.restore_components(
            loadable, self._components, self._group.rank, self._group.world_size
        )
        self.last_step = self._saver.committed_step = manifest.step
        message = "continues after step {}".format(manifest.step)
        if manifest.samples is not None:
            message += " ({} samples)".format(manifest.samples)
        if manifest.job is not None:
            message += ", saved by {}".format(manifest.job)
        if manifest.world_size != self._group.world_size:
            message += "; not bit-identical: {} ranks before, {} now".format(
                manifest.world_size, self._group.world_size
            )
        self._reporter.print_message(message)
        return loop_state

    def save(self, step: int, loop_state: Mapping[str, Any], samples: Optional[int]) -> None:
        """Start a save, after waiting for the previous one. The training may continue when it returns. Raises
        RuntimeError if no save can succeed."""
        self.finish_save()
        started_at = time.monotonic()
        shared_states: Dict[str, Any] = {}
        own_states: Dict[str, Any] = {LOOP_STATE: dict(loop_state)}
        for component in self._components:
            for tree, state in (
                (shared_states, component.shared_state()),
                (own_states, component.own_state()),
            ):
                if state is not None:
                    tree[component.name] = state
        sums = None
        if self._group.world_size > 1 and not self._sums_compared:
            sums, self._sums_compared = snapshot.tensor_sums(shared_states), True
        snapshot_of_step = self._snapshotter.take(step, shared_states, own_states)
        self._saver.start(snapshot_of_step, samples, sums)
        self._stall_seconds = time.monotonic() - started_at
        self._interval.record_save_start(started_at)
        self.last_step = step

    def report_finished_save(self) -> None:
        """Print the result of a finished save and update the interval."""
        result = self._saver.take_result()
        if result is None:
            return
        if result.fatal is not None:
            self._fatal_problem = "the checkpoint of step {} cannot be saved: {}".format(
                result.step, result.fatal
            )
        elif result.problem is not None:
            self._reporter.print_message("step {} was not saved: {}".format(result.step, result.problem))
            self.last_step = None
        else:
            message = self._interval.record_save_end(self._stall_seconds, result.seconds)
            if message is not None:
                self._reporter.print_message(message)

    def wait_for_save(self, seconds: float) -> None:
        """Wait for the running save, at most this long."""
        self._saver.wait(seconds)

    def finish_save(self) -> Optional[int]:
        """Wait for the running save and return the newest committed step. Raises RuntimeError if no save can
        succeed."""
        self._saver.wait()
        self.report_finished_save()
        if self._fatal_problem is not None:
            raise RuntimeError(self._fatal_problem)
        return self._saver.committed_step

    def write_outcome(self, result: str, step: Optional[int]) -> None:
        if self._group.rank == 0:
            self._store.write_outcome(result, step)
