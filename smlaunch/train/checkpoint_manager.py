"""Save and restore a training's checkpoints, on one rank."""

import time
from typing import Any, Dict, List, Mapping, Optional

from smlaunch.contract.checkpoint_layout import Manifest
from smlaunch.contract.segment import Segment
from smlaunch.train import checkpoint_loader
from smlaunch.train.background_saver import BackgroundSaver
from smlaunch.train.checkpoint_components import LOOP_STATE, Component
from smlaunch.train.checkpoint_store import CheckpointStore
from smlaunch.train.progress_reporter import ProgressReporter
from smlaunch.train.rank_group import RankGroup
from smlaunch.train.save_interval import SaveInterval
from smlaunch.train.snapshot import Snapshotter, sum_shared_tensors
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
        self._save_interval = interval
        self._reporter = reporter
        self._store = CheckpointStore(
            segment.checkpoint_dir,
            group.rank,
            group.world_size,
            keep_last=segment.keep_steps,
            job=segment.job,
            writer=segment.writer,
            transport=open_transport(segment),
        )
        self._snapshotter = Snapshotter(group.rank, group.world_size)
        # All ranks must create connections in the same order: so here, and not when the first save begins.
        self._background_saver = BackgroundSaver(self._store, group.new_group())
        self._save_stall_seconds = 0.0
        self._are_tensor_sums_compared = False
        self._fatal_problem: Optional[str] = None
        self.last_saved_step: Optional[int] = None
        """The newest step that a save was started for, or that was restored."""

    @property
    def is_saving(self) -> bool:
        return self._background_saver.is_saving

    @property
    def has_failed(self) -> bool:
        """Whether no save can succeed; ``finish_save`` raises the reason."""
        return self._fatal_problem is not None

    def restore_newest(self) -> Optional[Mapping[str, Any]]:
        """Restore the newest checkpoint that is intact on all hosts, and print which one. Collective.

        Return its ``loop_state`` as it was given to ``start_save``; None if there is no checkpoint. Raises
        ValueError if the checkpoint does not fit the script.
        """
        checkpoint = checkpoint_loader.find_checkpoint(self._store, self._group)
        if checkpoint is None:
            return None
        for rejection in checkpoint.rejections:  # why newer checkpoints are damaged
            self._reporter.print_message("not loaded: {}".format(rejection))
        manifest = checkpoint.manifest
        loop_state: Mapping[str, Any] = checkpoint_loader.restore_components(
            checkpoint, self._components, self._group.rank
        )
        # The restored step needs no save: it is the last saved and committed one.
        self.last_saved_step = self._background_saver.committed_step = manifest.step
        self._reporter.print_message(_describe_restored_checkpoint(manifest, self._group.world_size))
        return loop_state

    def start_save(self, step: int, loop_state: Mapping[str, Any], total_samples: Optional[int]) -> None:
        """Start saving a checkpoint in the background, after waiting for the previous save. The state is
        copied when this returns, so the training may continue. Collective.

        ``loop_state``: how far the training loop is, for ``restore_newest`` to return. ``total_samples``:
        used by all ranks so far; None if they are not counted. Raises RuntimeError if no save can succeed.
        """
        self.finish_save()  # waits for the previous save; raises if no save can succeed
        started_at = time.monotonic()
        # Shared state is equal on all ranks and saved once; own state is saved by every rank.
        shared_states: Dict[str, Any] = {}
        own_states: Dict[str, Any] = {LOOP_STATE: dict(loop_state)}  # under a reserved name
        for component in self._components:
            shared_state, own_state = component.shared_state(), component.own_state()
            if shared_state is not None:
                shared_states[component.name] = shared_state
            if own_state is not None:
                own_states[component.name] = own_state
        # The sums are compared between the ranks; once per job is enough to find a script whose ranks do not
        # train the same weights.
        tensor_sums = None
        if self._group.world_size > 1 and not self._are_tensor_sums_compared:
            tensor_sums = sum_shared_tensors(shared_states)
            self._are_tensor_sums_compared = True
        # Copied to host memory: a thread writes it, and commits the checkpoint with the other ranks.
        snapshot = self._snapshotter.take_snapshot(step, shared_states, own_states)
        self._background_saver.start_save(snapshot, total_samples, tensor_sums)
        self._save_stall_seconds = time.monotonic() - started_at
        self._save_interval.record_save_start(started_at)
        self.last_saved_step = step

    def report_save_result(self) -> None:
        """Report how the background save has ended, if it has: print a failure, or tell the save interval
        what the save cost. Why no save can succeed is kept, to be raised on all ranks after the same step."""
        result = self._background_saver.take_save_result()
        if result is None:  # still saving, or already reported
            return
        if result.fatal_problem is not None:
            self._fatal_problem = "the checkpoint of step {} cannot be saved: {}".format(
                result.step, result.fatal_problem
            )
        elif result.problem is not None:
            self._reporter.print_message("step {} was not saved: {}".format(result.step, result.problem))
            self.last_saved_step = None  # so that the end of the training saves this step again
        else:
            message = self._save_interval.record_save_end(self._save_stall_seconds, result.seconds)
            if message is not None:
                self._reporter.print_message(message)

    def wait_for_save(self, seconds: float) -> None:
        """Wait for the running save, at most this long."""
        self._background_saver.wait_for_save(seconds)

    def finish_save(self) -> Optional[int]:
        """Wait for the running save and return the newest committed step. Raises RuntimeError if no save can
        succeed."""
        self._background_saver.wait_for_save()
        self.report_save_result()
        if self._fatal_problem is not None:
            raise RuntimeError(self._fatal_problem)
        return self._background_saver.committed_step

    def write_outcome(self, result: str, step: Optional[int]) -> None:
        if self._group.rank == 0:
            self._store.write_outcome(result, step)


def _describe_restored_checkpoint(manifest: Manifest, world_size: int) -> str:
    """Return the message about a restored checkpoint. ``world_size``: the number of ranks now."""
    message = "continues after step {}".format(manifest.step)
    if manifest.samples is not None:
        message += " ({} samples)".format(manifest.samples)
    if manifest.job is not None:
        message += ", saved by {}".format(manifest.job)
    if manifest.world_size != world_size:
        message += "; not bit-identical: {} ranks before, {} now".format(manifest.world_size, world_size)
    return message
