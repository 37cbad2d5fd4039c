"""Hugging Face's Trainer, resumable at any step of the optimizer.

    trainer = Trainer(model, TrainingArguments(..., save_strategy="no"), ...)
    resume = Resume(trainer)
    resume.train()  # in place of trainer.train()
    if resume.finished:
        ...save the model; otherwise the next segment goes on

The Trainer finds its place in an epoch from a checkpoint of its own, and only from that. So its checkpoint is
what is kept here, file by file, as parts of one of ours: taken at a step that all ranks agree on, verified,
committed. Tried with transformers 5.23; docs/trainers.md says what is exact and what is not.
"""

import os
import tempfile
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
from torch.utils.data import get_worker_info
from transformers import TrainerCallback

from smlaunch.train import buckets, components, rng
from smlaunch.train.checkpointer import Checkpointer


class Seeded:
    """A dataset of which whatever a sample draws from Python's, NumPy's or PyTorch's global generator depends
    on (seed, epoch, sample) alone. Without it, such a training is not exact when it is cut within an epoch:
    the Trainer loads batches ahead, and draws for them again when it goes on."""

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        self._dataset = dataset
        self._seed = seed
        self.epoch = 0
        """``Resume`` sets it."""

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> List[Any]:
        # A worker process has its generators to itself; here, they are the training's.
        with rng.apart(keep=get_worker_info() is None):
            return [self._load(index) for index in indices]

    def _load(self, index: int) -> Any:
        rng.begin_sample(self._seed, self.epoch, index)
        return self._dataset[index]


class _Leave(Exception):
    """Ends the Trainer's loop: its own way would first train one more step, or evaluate."""


class Resume(TrainerCallback):  # type: ignore[misc]
    """``every``, ``every_steps``, ``keep``, ``directory``: as the Checkpointer's.

    A step is over when all that the Trainer does after it is, logging and evaluation included. So a run that
    is cut where these come does them once. Raises ValueError for FSDP and DeepSpeed, whose checkpoints are in
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
        for name in ("fsdp", "deepspeed"):
            if getattr(trainer, "is_{}_enabled".format(name), False):
                raise ValueError("{}: the Trainer's checkpoint is in pieces then; use DDP".format(name))
        if trainer.args.save_only_model or trainer.args.ignore_data_skip:
            raise ValueError("save_only_model and ignore_data_skip: leave them off, else nothing is exact")
        if isinstance(trainer.train_dataset, Seeded) and trainer.args.dataloader_persistent_workers:
            raise ValueError("dataloader_persistent_workers: such workers do not learn of a new epoch")
        self._trainer = trainer
        self._settings: Dict[str, Any] = {
            "every": every,
            "every_steps": every_steps,
            "keep": keep,
            "directory": directory,
        }
        self._run: Optional[Checkpointer] = None
        self._files = _Files(trainer)
        self._loss: Any = None
        self._stepped = False
        self.finished = False
        """After ``train()``: the training is over, not just the segment."""

    def train(self, **settings: Any) -> Any:
        """``trainer.train(**settings)``, from the newest checkpoint on; what that returns, or None when the
        ranks have left before the end. Raises what entering a Checkpointer does."""
        trainer = self._trainer
        self.finished = self._stepped = False
        trainer.add_callback(self)
        files = self._files = _Files(trainer)
        # What rank 0 writes is the Trainer's, and the same for all; other ranks add their random state.
        rank = trainer.args.process_index
        views: Dict[str, Any] = {
            "trainer": _View(files, rank, leading=True),
            "ranks": _View(files, rank, leading=False),
        }
        result = None
        try:
            with tempfile.TemporaryDirectory(prefix="smlaunch-trainer-") as folder:
                with Checkpointer(shared=("trainer",), **views, **self._settings) as run:
                    self._run = run
                    if run.restored_step is not None:
                        files.lay_out(folder)
                        settings["resume_from_checkpoint"] = folder
                    try:
                        result = trainer.train(**settings)
                    except _Leave:
                        trainer.is_in_train = False
                self.finished = not run.leaving
        finally:
            self._run = None
            trainer.remove_callback(self)
        return result

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wrapped = self._trainer.model_wrapped
        if components.is_ddp(wrapped):
            buckets.settle(wrapped)
        if self._run is not None:
            self._run.expect(state.max_steps)
        self._files.live = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stepped = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step_over()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if isinstance(self._trainer.train_dataset, Seeded):
            self._trainer.train_dataset.epoch = int(state.epoch or 0)
        self._step_over()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._step_over()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self._loss = (logs or {}).get("loss", self._loss)

    def _step_over(self) -> None:
        run = self._run
        if run is None or not self._stepped:
            return
        self._stepped = False
        loss, self._loss = self._loss, None
        run.step(**({} if loss is None else {"loss": loss}))
        if run.leaving:
            raise _Leave


class _Files:
    """The Trainer's checkpoint on this rank, held as arrays of bytes. None before the training has begun."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._written: Optional[Mapping[str, Any]] = None
        self._restored: List[Mapping[str, Any]] = []
        self.live = False

    def written(self) -> Mapping[str, Any]:
        """What the Trainer writes at the step it is at; once, until it is forgotten."""
        if not self.live:
            return {}
        if self._written is None:
            self._written = self._write()
        return self._written

    def forget(self) -> None:
        self._written = None

    def give(self, files: Mapping[str, Any]) -> None:
        self._restored.append(files)

    def lay_out(self, folder: str) -> None:
        """What was restored, as the files it was read from."""
        for files in self._restored:
            for name, content in files.items():
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                content.tofile(path)
        self._restored = []

    def _write(self) -> Dict[str, Any]:
        args = self._trainer.args
        before = args.output_dir, args.push_to_hub
        with tempfile.TemporaryDirectory(prefix="smlaunch-trainer-") as folder:
            args.output_dir, args.push_to_hub = folder, False
            try:
                # Not public. The public way, to ask for a save through TrainerControl, has one in the middle
                # of a step, before its evaluation, and before the ranks have agreed on it.
                self._trainer._save_checkpoint(self._trainer.model_wrapped, trial=None)
            finally:
                args.output_dir, args.push_to_hub = before
            checkpoint = os.path.join(folder, "checkpoint-{}".format(self._trainer.state.global_step))
            return {
                os.path.relpath(os.path.join(at, name), checkpoint): np.fromfile(
                    os.path.join(at, name), np.uint8
                )
                for at, _, names in os.walk(checkpoint)
                for name in names
            }


class _View:
    """The files of one kind as the Checkpointer takes them. ``leading``: rank 0's, which serve all ranks;
    else those of each other rank, which are its random state. They are read last: nobody needs any then."""

    def __init__(self, files: _Files, rank: int, *, leading: bool) -> None:
        self._files = files
        self._mine = (rank == 0) == leading
        self._last = not leading

    def state_dict(self) -> Dict[str, Any]:
        state = dict(self._files.written()) if self._mine else {}
        if self._last:
            self._files.forget()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._files.give(state)
