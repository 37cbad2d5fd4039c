"""Make PyTorch Lightning's Trainer resumable at any step: a callback, and the loader of a ResumableOrder.

    order = ResumableOrder(len(dataset), batch_size=64, seed=1)
    resume = Resume(order)
    trainer = Trainer(callbacks=[resume, ...], ...)
    trainer.fit(module, order.loader(dataset, num_workers=2))
    if resume.finished:
        ...save the model; otherwise the next segment continues

Not Lightning's checkpoint files are saved but the objects themselves, as in any script with a Checkpointer:
model, optimizers, schedulers, Lightning's loops, its callbacks and the random state of every rank. Tested
with lightning 2.6; docs/trainers.md lists what is exact and what is not.
"""

import importlib
import math
import signal
import sys
import threading
from typing import Any, Dict, List, Mapping, Optional

from smlaunch.train import rng
from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.resumable_order import ResumableOrder

# Each name of the library has classes of its own, and a Trainer accepts only its own.
if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

# Lightning's own tools end fit() early with it. Trainer.should_stop would first run a validation, and tell
# all hooks that an epoch and the training have ended, although the next segment continues them.
_StopTraining: Any = importlib.import_module(pl.__name__ + ".utilities.exceptions")._TunerExitException  # noqa: SLF001


class Resume(pl.Callback):  # type: ignore[misc]
    """``order``: the order whose ``loader()`` is the training's. ``every``, ``every_steps``, ``keep``,
    ``directory``: as the Checkpointer's. Put it before other callbacks.

    A step ends after everything that Lightning does after it, validation and the end of an epoch included. So
    an interrupted run does these only once.
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
        self._checkpointer_settings: Dict[str, Any] = {
            "every": every,
            "every_steps": every_steps,
            "keep": keep,
            "directory": directory,
        }
        self._checkpointer: Optional[Checkpointer] = None
        self._restored_generator_states: Optional[Mapping[str, Any]] = None
        self._checkpointer_sigterm_handler: Any = None
        self._original_sigterm_handler: Any = None
        self._last_global_step = 0
        self._unreported_metrics: Optional[Dict[str, Any]] = None
        self.finished = False
        """After ``fit()``: whether the training is finished, rather than only the segment."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Create and enter the Checkpointer when Lightning has set up the model and the optimizers, and
        thereby restore the newest checkpoint. Raises what entering a Checkpointer does, and TypeError for a
        strategy whose state cannot be saved."""
        strategy_name = type(trainer.strategy).__name__
        if strategy_name.startswith("DeepSpeed"):
            raise TypeError("{}: its state is not torch.optim's; use ddp".format(strategy_name))
        self.finished = False
        optimizers, schedulers = trainer.optimizers, trainer.lr_scheduler_configs
        # What a checkpoint needs beside the Checkpointer's own model, optimizer, scheduler and order.
        extra_components: Dict[str, Any] = {
            "precision": trainer.precision_plugin,
            "loops": _FitLoopComponent(trainer.fit_loop),  # Lightning's counters
            "callbacks": _OtherCallbacksComponent(trainer, self),  # all but this one
            "hooks": _CheckpointHooksComponent(trainer, pl_module),  # what on_save_checkpoint() adds
        }
        for number, optimizer in enumerate(optimizers[1:], 2):
            extra_components["optimizer_{}".format(number)] = optimizer
        for number, config in enumerate(schedulers[1:], 2):
            extra_components["scheduler_{}".format(number)] = config.scheduler
        self._original_sigterm_handler = signal.getsignal(signal.SIGTERM)
        checkpointer = Checkpointer(
            model=trainer.strategy.model,
            optimizer=optimizers[0] if optimizers else None,
            scheduler=schedulers[0].scheduler if schedulers else None,
            order=self._order,
            **self._checkpointer_settings,
            **extra_components,
        )
        # The Checkpointer handles SIGTERM by a stop after the current step; Lightning replaces its handler
        # before on_train_start().
        self._checkpointer = checkpointer.__enter__()  # left when the training ends, in another hook
        self._checkpointer_sigterm_handler = signal.getsignal(signal.SIGTERM)
        # Until the first batch, Lightning and the module may draw numbers as at the very start: the restored
        # states are set again after that.
        self._restored_generator_states = (
            rng.capture_generator_states() if checkpointer.restored_step is not None else None
        )
        # A batch after which Lightning's global_step is another one has completed an optimizer's step.
        self._last_global_step = trainer.global_step
        self._unreported_metrics = None  # those of a step that the Checkpointer has not been told of

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._set_sigterm_handler(self._checkpointer_sigterm_handler)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Check that the training's loader uses this callback's order of samples, set the total steps, and
        restore the random generators and the signal handler as they were when the checkpoint was restored."""
        loader = trainer.train_dataloader
        if getattr(loader, "order", None) is not self._order:
            raise ValueError("the training's loader must come from loader() of the order that Resume has")
        # The number of optimizer steps of the whole training; inf if it has no end.
        if self._checkpointer is not None and math.isfinite(trainer.estimated_stepping_batches):
            self._checkpointer.set_total_steps(int(trainer.estimated_stepping_batches))
        # Lightning's handler would end this rank alone, and its collectives inside a signal handler hang.
        self._set_sigterm_handler(self._checkpointer_sigterm_handler)
        if self._restored_generator_states is not None:
            rng.restore_generator_states(self._restored_generator_states)
            self._restored_generator_states = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._record_step()
        if self._checkpointer is not None and self._checkpointer.should_stop:
            self._finish()
            raise _StopTraining

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance the order of samples by one batch, and keep the loss to be reported if the optimizer has
        made a step."""
        order = self._order
        # position_after() returns None at the end of an epoch.
        order.position = order.position_after(order.position) or order.next_epoch(order.position)
        if trainer.global_step != self._last_global_step:  # else gradients are still being accumulated
            self._last_global_step = trainer.global_step
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            self._unreported_metrics = {} if loss is None else {"loss": loss}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        order = self._order
        if order.position_after(order.position) is None:
            order.position = order.next_epoch(order.position)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._record_step()
        self._finish()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._finish()  # if there was nothing left to train

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # At its end Lightning restores the Checkpointer's handler: right for a rank that stops, which must
        # not be killed meanwhile, and wrong for a script that continues to its own end.
        if self.finished:
            self._set_sigterm_handler(self._original_sigterm_handler)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.__exit__(type(exception), exception, exception.__traceback__)

    def _record_step(self) -> None:
        """Report the optimizer's last step to the Checkpointer, once."""
        if self._checkpointer is not None and self._unreported_metrics is not None:
            metrics, self._unreported_metrics = self._unreported_metrics, None
            self._checkpointer.step(**metrics)

    def _finish(self) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.__exit__(None, None, None)
            self.finished = not checkpointer.should_stop

    def _set_sigterm_handler(self, handler: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


class _FitLoopComponent:
    """Lightning's counters. A batch that was fetched but not trained with does not count."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = self._loop.state_dict()
        progress = state["epoch_loop.batch_progress"]
        state["epoch_loop.batch_progress"] = {
            **progress,
            **{
                period: {**progress[period], "ready": progress[period]["started"]}
                for period in ("total", "current")
            },
            "is_last_batch": progress["is_last_batch"]
            and progress["current"]["ready"] == progress["current"]["started"],
        }
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._loop.load_state_dict(state)


class _OtherCallbacksComponent:
    """The other callbacks, by their Lightning state keys."""

    def __init__(self, trainer: Any, resume: Resume) -> None:
        self._trainer = trainer
        self._resume = resume

    def state_dict(self) -> Dict[str, Any]:
        return {callback.state_key: callback.state_dict() for callback in self._other_callbacks()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for callback in self._other_callbacks():
            if state.get(callback.state_key):
                callback.load_state_dict(state[callback.state_key])

    def _other_callbacks(self) -> List[Any]:
        return [callback for callback in self._trainer.callbacks if callback is not self._resume]


class _CheckpointHooksComponent:
    """What the script's own hooks put into a checkpoint: the module's, the data module's, the callbacks'."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer = trainer
        self._module = module

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {}
        for callback in self._trainer.callbacks:
            callback.on_save_checkpoint(self._trainer, self._module, state)
        self._module.on_save_checkpoint(state)
        datamodule = self._trainer.datamodule
        return {"checkpoint": state, "data": datamodule.state_dict() if datamodule is not None else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        checkpoint = dict(state["checkpoint"])
        for callback in self._trainer.callbacks:
            callback.on_load_checkpoint(self._trainer, self._module, checkpoint)
        self._module.on_load_checkpoint(checkpoint)
        if self._trainer.datamodule is not None:
            self._trainer.datamodule.load_state_dict(state["data"])
