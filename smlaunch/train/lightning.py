"""PyTorch Lightning's Trainer, resumable at any step: a callback, and the loader of a ResumableOrder.

    order = ResumableOrder(len(dataset), batch_size=64, seed=1)
    resume = Resume(order)
    trainer = Trainer(callbacks=[resume, ...], ...)
    trainer.fit(module, order.loader(dataset, num_workers=2))
    if resume.finished:
        ...save the model; otherwise the next segment goes on

Not Lightning's checkpoint files but the objects themselves are kept, as by any script that uses Checkpointer:
model, optimizers, schedulers, Lightning's loops, its callbacks and the random state of every rank. Tried with
lightning 2.6; docs/trainers.md says what is exact and what is not.
"""

import importlib
import math
import signal
import sys
import threading
from typing import Any, Dict, List, Mapping, Optional

from smlaunch.train import rng
from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.order import ResumableOrder

# Both names of the library have classes of their own, and a Trainer takes its own only.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

# How Lightning's own tools end fit() early. Trainer.should_stop would first run a validation, and tell all
# hooks that an epoch and the training have ended, which the next segment goes on with.
_Leave: Any = importlib.import_module(pl.__name__ + ".utilities.exceptions")._TunerExitException


class Resume(pl.Callback):  # type: ignore[misc]
    """``order``: whose ``loader()`` is the training's. ``every``, ``every_steps``, ``keep``, ``directory``:
    as the Checkpointer's. Put it before other callbacks.

    A step is over when all that Lightning does after it is, validation and the end of an epoch included. So a
    run that is cut where these come does them once.
    """

    def __init__(
        self,
        order: ResumableOrder,
        *,
        every: Optional[float] = None,
        every_steps: Optional[int] = None,
        keep: Optional[int] = None,
        directory: Optional[str] = None,
    ) -> None:
        self._order = order
        self._settings: Dict[str, Any] = {
            "every": every,
            "every_steps": every_steps,
            "keep": keep,
            "directory": directory,
        }
        self._run: Optional[Checkpointer] = None
        self._generators: Optional[Mapping[str, Any]] = None
        self._handler: Any = None
        self._former: Any = None
        self._optimizer_steps = 0
        self._metrics: Optional[Dict[str, Any]] = None
        self.finished = False
        """After ``fit()``: the training is over, not just the segment."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Raises as entering a Checkpointer does, and TypeError for a strategy whose state cannot be kept."""
        strategy = type(trainer.strategy).__name__
        if strategy.startswith("DeepSpeed"):
            raise TypeError("{}: its state is not torch.optim's; use ddp".format(strategy))
        self.finished = False
        optimizers, schedulers = trainer.optimizers, trainer.lr_scheduler_configs
        things: Dict[str, Any] = {
            "precision": trainer.precision_plugin,
            "loops": _Loops(trainer.fit_loop),
            "callbacks": _Callbacks(trainer, self),
            "hooks": _Hooks(trainer, pl_module),
        }
        for place, optimizer in enumerate(optimizers[1:], 2):
            things["optimizer_{}".format(place)] = optimizer
        for place, config in enumerate(schedulers[1:], 2):
            things["scheduler_{}".format(place)] = config.scheduler
        self._former = signal.getsignal(signal.SIGTERM)
        run = Checkpointer(
            model=trainer.strategy.model,
            optimizer=optimizers[0] if optimizers else None,
            scheduler=schedulers[0].scheduler if schedulers else None,
            order=self._order,
            **self._settings,
            **things,
        )
        self._run = run.__enter__()
        self._handler = signal.getsignal(signal.SIGTERM)
        # Until the first batch, Lightning and the module may draw what they drew at the very start, too.
        self._generators = rng.capture() if run.restored_step is not None else None
        self._optimizer_steps = trainer.global_step
        self._metrics = None

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._on_sigterm(self._handler)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        loader = trainer.train_dataloader
        if getattr(loader, "order", None) is not self._order:
            raise ValueError("the training's loader is not of loader() of the order that Resume was given")
        if self._run is not None and math.isfinite(trainer.estimated_stepping_batches):
            self._run.expect(int(trainer.estimated_stepping_batches))
        # Lightning's handler would end this rank alone, and its collectives inside a signal handler hang.
        self._on_sigterm(self._handler)
        if self._generators is not None:
            rng.restore(self._generators)
            self._generators = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._step_over()
        if self._run is not None and self._run.leaving:
            self._close()
            raise _Leave

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        order = self._order
        order.position = order.after(order.position) or order.next_epoch(order.position)
        if trainer.global_step != self._optimizer_steps:  # else gradients are still being accumulated
            self._optimizer_steps = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            self._metrics = {} if loss is None else {"loss": loss}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        order = self._order
        if order.after(order.position) is None:
            order.position = order.next_epoch(order.position)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._step_over()
        self._close()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._close()  # where there was nothing left to train

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # What Lightning puts back at its end is the Checkpointer's handler: right for a rank that leaves,
        # which must not be killed on its way out, and wrong for a script that goes on to its own end.
        if self.finished:
            self._on_sigterm(self._former)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.__exit__(type(exception), exception, exception.__traceback__)

    def _step_over(self) -> None:
        if self._run is not None and self._metrics is not None:
            metrics, self._metrics = self._metrics, None
            self._run.step(**metrics)

    def _close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.__exit__(None, None, None)
            self.finished = not run.leaving

    def _on_sigterm(self, handler: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


class _Loops:
    """Lightning's counters. A batch that has been fetched and not trained with is nobody's yet."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = self._loop.state_dict()
        batches = state["epoch_loop.batch_progress"]
        state["epoch_loop.batch_progress"] = {
            **batches,
            **{span: {**batches[span], "ready": batches[span]["started"]} for span in ("total", "current")},
            "is_last_batch": batches["is_last_batch"]
            and batches["current"]["ready"] == batches["current"]["started"],
        }
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._loop.load_state_dict(state)


class _Callbacks:
    """The other callbacks, by the keys Lightning gives them."""

    def __init__(self, trainer: Any, own: Resume) -> None:
        self._trainer = trainer
        self._own = own

    def state_dict(self) -> Dict[str, Any]:
        return {callback.state_key: callback.state_dict() for callback in self._others()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for callback in self._others():
            if state.get(callback.state_key):
                callback.load_state_dict(state[callback.state_key])

    def _others(self) -> List[Any]:
        return [callback for callback in self._trainer.callbacks if callback is not self._own]


class _Hooks:
    """What the script's own hooks put into a checkpoint: the module's, the data module's, the callbacks'."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer = trainer
        self._module = module

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {}
        for callback in self._trainer.callbacks:
            callback.on_save_checkpoint(self._trainer, self._module, state)
        self._module.on_save_checkpoint(state)
        data = self._trainer.datamodule
        return {"checkpoint": state, "data": data.state_dict() if data is not None else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        checkpoint = dict(state["checkpoint"])
        for callback in self._trainer.callbacks:
            callback.on_load_checkpoint(self._trainer, self._module, checkpoint)
        self._module.on_load_checkpoint(checkpoint)
        if self._trainer.datamodule is not None:
            self._trainer.datamodule.load_state_dict(state["data"])
