"""Hugging Face's Trainer, resumable by our checkpoints: ``finished = train(trainer)`` in place of
``trainer.train()``.

What is kept is the Trainer's own checkpoint (model, optimizer, scheduler, its state and the random state of
every rank), taken at a step that all ranks agree on. It finds its place in an epoch by passing over the
batches it has seen, so a loader with random augmentation of its own is not exact. Tried with transformers 5.
"""

import os
import tempfile
from typing import Any

from transformers import TrainerCallback

from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.files import Files


def train(trainer: Any, **settings: Any) -> bool:
    """Trains to the end, or to the end of the segment: True when the training is finished.

    ``settings``: those of ``Checkpointer`` (``every``, ``every_steps``, ``keep``, things to register, ...).
    Turn the Trainer's own saving off (``save_strategy="no"``): two of them would only cost twice.
    """
    files = Files(lambda folder: _save(trainer, folder))
    with tempfile.TemporaryDirectory(prefix="smlaunch-") as folder:
        with Checkpointer(trainer=files, **settings) as run:
            follower = _Follower(run, files)
            trainer.add_callback(follower)
            try:
                trainer.train(resume_from_checkpoint=folder if files.lay_out(folder) else None)
            finally:
                trainer.remove_callback(follower)
        return not run.leaving


def _save(trainer: Any, folder: str) -> None:
    """The Trainer's own checkpoint, its files right in ``folder``."""
    before = trainer.args.output_dir
    with tempfile.TemporaryDirectory(dir=folder) as inner:
        trainer.args.output_dir = inner
        try:
            # Not public, and what every release has had since the first: there is no other way to have a
            # checkpoint at a step that is chosen while training.
            trainer._save_checkpoint(trainer.model_wrapped, trial=None)
        finally:
            trainer.args.output_dir = before
        for checkpoint in os.listdir(inner):
            for name in os.listdir(os.path.join(inner, checkpoint)):
                os.rename(os.path.join(inner, checkpoint, name), os.path.join(folder, name))


class _Follower(TrainerCallback):  # type: ignore[misc]
    def __init__(self, run: Checkpointer, files: Files) -> None:
        self._run = run
        self._files = files

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        self._run.step()
        if self._run.leaving:
            self._files.hold()
            control.should_training_stop = True
        return control
