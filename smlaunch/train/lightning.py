"""Lightning's Trainer, resumable by our checkpoints: ``finished = fit(trainer, module, loader)``.

What is kept is Lightning's own checkpoint and every rank's random state, taken at a step that all ranks
agree on; the loader is ``Epochs`` over one of ``ResumableOrder``, so that an epoch goes on with its very next
batch. With several ranks call ``init_process_group`` before (what was kept is read before Lightning would do
so), and give Lightning ``use_distributed_sampler=False``. Tried with lightning 2.6.
"""

import os
import sys
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, Optional

from smlaunch.train import rng
from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.files import Files
from smlaunch.train.order import Position, ResumableOrder

if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

_CHECKPOINT = "lightning.ckpt"


class Epochs:
    """The batches of ``order.loader(...)`` for a loop that is somebody else's: each pass is what is left of
    an epoch. ``len`` is that of a whole epoch, since Lightning counts the batches it has seen itself."""

    def __init__(self, loader: Any) -> None:
        self.order: ResumableOrder = loader.order
        self._loader = loader
        self._handed: List[Position] = []

    def __len__(self) -> int:
        return self.order.steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        order = self.order
        self._handed = []
        if order.after(order.position) is None:
            order.position = order.next_epoch(order.position)
        for (position, _), batch in zip(order.batches(), self._loader):
            self._handed.append(position)
            yield batch

    def settle(self) -> None:
        """The first batch that was handed out and not settled yet has been trained with."""
        self.order.position = self._handed.pop(0)


def fit(trainer: Any, module: Any, loader: Epochs, *, val_dataloaders: Any = None, **settings: Any) -> bool:
    """Trains to the end, or to the end of the segment: True when the training is finished.

    ``settings``: those of ``Checkpointer`` (``every``, ``every_steps``, ``keep``, things to register, ...).
    Turn Lightning's own saving off (``enable_checkpointing=False``): two of them would only cost twice.
    """
    files = Files(lambda folder: trainer.save_checkpoint(os.path.join(folder, _CHECKPOINT)))
    generators = _Generators()
    with tempfile.TemporaryDirectory(prefix="smlaunch-") as folder:
        with Checkpointer(lightning=files, position=loader.order, generators=generators, **settings) as run:
            follower = _Follower(run, loader, files, generators)
            trainer.callbacks.append(follower)
            path = os.path.join(folder, _CHECKPOINT)
            try:
                trainer.fit(
                    module,
                    loader,
                    val_dataloaders,
                    ckpt_path=path if files.lay_out(folder) else None,
                    # What lies there was written by this run, and holds more than tensors.
                    weights_only=False,
                )
            finally:
                trainer.callbacks.remove(follower)
        return not run.leaving


class _Generators:
    """The global generators, given back when Lightning has made everything ready: until then it draws."""

    def __init__(self) -> None:
        self._restored: Optional[Mapping[str, Any]] = None
        self._held: Optional[Dict[str, Any]] = None

    def hold(self) -> None:
        """See ``Files.hold``."""
        self._held = self.state_dict()

    def state_dict(self) -> Dict[str, Any]:
        return dict(rng.capture()) if self._held is None else self._held

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._restored = state

    def give_back(self) -> None:
        if self._restored is not None:
            rng.restore(self._restored)
            self._restored = None


class _Follower(Callback):  # type: ignore[misc]
    def __init__(self, run: Checkpointer, loader: Epochs, files: Files, generators: _Generators) -> None:
        self._run = run
        self._loader = loader
        self._files = files
        self._generators = generators
        self._steps = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._generators.give_back()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._loader.settle()
        if trainer.global_step == self._steps:
            return  # a batch whose gradients are accumulated
        self._steps = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self._run.step(**({} if loss is None else {"loss": loss}))
        if self._run.leaving:
            self._files.hold()
            self._generators.hold()
            trainer.should_stop = True
