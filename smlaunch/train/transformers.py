"""Make Hugging Face's Trainer resumable at any step of the optimizer.

    trainer = Trainer(model, TrainingArguments(..., save_strategy="no"), ...)
    resume = Resume(trainer)
    resume.train()  # in place of trainer.train()
    if resume.finished:
        ...save the model; otherwise the next segment continues

The Trainer finds its position in an epoch only from a checkpoint of its own. So its checkpoint is what is
saved here, file by file, as part of ours: at a step that all ranks agree on, verified, committed. Tested with
transformers 5.23; docs/trainers.md lists what is exact and what is not.
"""

import os
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
from torch.utils.data import get_worker_info
from transformers import TrainerCallback

from smlaunch.train import checkpoint_components, ddp_buckets, rng
from smlaunch.train.checkpointer import Checkpointer


class SeededDataset:
    """A dataset in which everything a sample draws from Python's, NumPy's or PyTorch's global generator
    depends only on (seed, epoch, sample). Without it, a training interrupted within an epoch is not exact:
    the Trainer loads batches ahead, and draws for them again when it continues."""

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self._dataset = dataset
        self._seed = seed
        self.epoch = 0
        """Set by ``Resume``."""

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> List[Any]:
        # A worker process has generators of its own; in this process they belong to the training.
        with rng.fork_rng(restore_state=get_worker_info() is None):
            return [self._load(index) for index in indices]

    def _load(self, index: int) -> Any:
        rng.seed_sample(self._seed, self.epoch, index)
        return self._dataset[index]


class _StopTraining(Exception):
    """Ends the Trainer's loop. Its own way would first train one more step, or evaluate."""


class Resume(TrainerCallback):  # type: ignore[misc]
    """``every``, ``every_steps``, ``keep``, ``directory``: as the Checkpointer's.

    A step ends after everything that the Trainer does after it, logging and evaluation included. So an
    interrupted run does these only once. Raises ValueError for FSDP and DeepSpeed, whose checkpoints are in
    pieces.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        every: Optional[float] = None,
        every_steps: Optional[int] = None,
        keep: Optional[int] = None,
        directory: Optional[str] = None,
    ) -> None:
        """Make a Trainer of Hugging Face transformers resumable. ``every`` (seconds), ``every_steps``,
        ``keep`` (how many checkpoints) and ``directory`` are the Checkpointer's. Raises ValueError for a
        Trainer whose settings prevent an exact restart."""
        for strategy in ("fsdp", "deepspeed"):
            if getattr(trainer, "is_{}_enabled".format(strategy), False):
                raise ValueError("{}: the Trainer's checkpoint would be in pieces; use DDP".format(strategy))
        if trainer.args.save_only_model or trainer.args.ignore_data_skip:
            raise ValueError("save_only_model and ignore_data_skip: must be off, else nothing is exact")
        # A SeededDataset seeds the generators by epoch and sample; worker processes get a copy of it.
        if isinstance(trainer.train_dataset, SeededDataset) and trainer.args.dataloader_persistent_workers:
            raise ValueError(
                "dataloader_persistent_workers: must be off, such workers do not see a new epoch"
            )
        self._trainer = trainer
        self._checkpointer_settings: Dict[str, Any] = {
            "every": every,
            "every_steps": every_steps,
            "keep": keep,
            "directory": directory,
        }
        self._checkpointer: Optional[Checkpointer] = None
        self._trainer_files = _TrainerFiles(trainer)  # the Trainer's own checkpoint, as a component of ours
        self._last_logged_loss: Any = None  # logged after a step, reported with it
        self._has_unreported_step = False
        self.finished = False
        """After ``train()``: whether the training is finished, rather than only the segment."""

    def train(self, **settings: Any) -> Any:
        """Run ``trainer.train(**settings)`` from the newest checkpoint on; return its result, or None if the
        ranks stopped before the end. Raises what entering a Checkpointer does."""
        trainer = self._trainer
        self.finished = self._has_unreported_step = False
        trainer.add_callback(self)
        files = self._trainer_files = _TrainerFiles(trainer)
        # Rank 0 writes the Trainer's state, equal for all ranks; the other ranks add their random state.
        rank = trainer.args.process_index
        components: Dict[str, Any] = {
            "trainer": _FilesOfRank(files, rank, is_leader_view=True),
            "ranks": _FilesOfRank(files, rank, is_leader_view=False),
        }
        result = None
        try:
            with tempfile.TemporaryDirectory(prefix="smlaunch-trainer-") as folder:
                with Checkpointer(shared=("trainer",), **components, **self._checkpointer_settings) as run:
                    self._checkpointer = run
                    if run.restored_step is not None:
                        files.write_restored(folder)
                        settings["resume_from_checkpoint"] = folder
                    try:
                        result = trainer.train(**settings)
                    except _StopTraining:
                        trainer.is_in_train = False
                self.finished = not run.should_stop
        finally:
            self._checkpointer = None
            trainer.remove_callback(self)
        return result

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wrapped = self._trainer.model_wrapped
        if checkpoint_components.is_ddp(wrapped):
            ddp_buckets.rebuild_ddp_buckets(wrapped)
        if self._checkpointer is not None:
            self._checkpointer.set_total_steps(state.max_steps)
        self._trainer_files.is_training = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._has_unreported_step = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._record_step()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if isinstance(self._trainer.train_dataset, SeededDataset):
            self._trainer.train_dataset.epoch = int(state.epoch or 0)
        self._record_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._record_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._last_logged_loss = (logs or {}).get("loss", self._last_logged_loss)

    def _record_step(self) -> None:
        """Report the optimizer's last step to the Checkpointer, with the loss that was logged for it; several
        callbacks of the Trainer call this, and the first one after a step counts. Stop the Trainer, by an
        exception that ``train`` handles, if the ranks have agreed to stop."""
        checkpointer = self._checkpointer
        if checkpointer is None or not self._has_unreported_step:
            return
        self._has_unreported_step = False
        loss, self._last_logged_loss = self._last_logged_loss, None
        checkpointer.step(**({} if loss is None else {"loss": loss}))
        if checkpointer.should_stop:
            raise _StopTraining


class _TrainerFiles:
    """The Trainer's checkpoint on this rank, held as arrays of bytes. Empty before the training has
    started."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._current: Optional[Mapping[str, Any]] = None
        self._restored_files: List[Mapping[str, Any]] = []
        self.is_training = False

    def current_files(self) -> Mapping[str, Any]:
        """Return the files that the Trainer writes at its present step; written once, until discarded."""
        if not self.is_training:
            return {}
        if self._current is None:
            self._current = self._save_checkpoint()
        return self._current

    def discard(self) -> None:
        self._current = None

    def add_restored(self, files: Mapping[str, Any]) -> None:
        self._restored_files.append(files)

    def write_restored(self, folder: str) -> None:
        """Write the restored files into a folder."""
        for files in self._restored_files:
            for name, content in files.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                content.tofile(path)
        self._restored_files = []

    def _save_checkpoint(self) -> Dict[str, Any]:
        """Let the Trainer write its checkpoint into a temporary folder, and return the files."""
        args = self._trainer.args
        saved_settings = args.output_dir, args.push_to_hub
        with tempfile.TemporaryDirectory(prefix="smlaunch-trainer-") as folder:
            args.output_dir, args.push_to_hub = folder, False
            try:
                # Not public. The public way, a save through TrainerControl, comes in the middle of a step,
                # before its evaluation, and before the ranks have agreed on it.
                self._trainer._save_checkpoint(self._trainer.model_wrapped, trial=None)  # noqa: SLF001
            finally:
                args.output_dir, args.push_to_hub = saved_settings
            checkpoint = os.path.join(folder, "checkpoint-{}".format(self._trainer.state.global_step))
            return {
                os.path.relpath(os.path.join(folder_path, name), checkpoint): np.fromfile(
                    os.path.join(folder_path, name), np.uint8
                )
                for folder_path, _, names in os.walk(checkpoint)
                for name in names
            }


class _FilesOfRank:
    """The files of one kind, as a component of the Checkpointer. ``is_leader_view``: rank 0's, which serve
    all ranks; otherwise those of each other rank, which are its random state. The latter are read last, and
    then discard the files."""

    def __init__(self, files: _TrainerFiles, rank: int, *, is_leader_view: bool) -> None:
        self._files = files
        self._has_files = (rank == 0) == is_leader_view
        self._is_last = not is_leader_view

    def state_dict(self) -> Dict[str, Any]:
        state = dict(self._files.current_files()) if self._has_files else {}
        if self._is_last:
            self._files.discard()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._files.add_restored(state)
