"""What is kept of a training: each thing by its name, with how its state is read and given back.

Shared state is equal on all ranks and is kept once. Everything else is each rank's own, which is right for
any state, and dearer: a rank that the next segment has beyond those that saved gets the state of rank
``rank % saved``.
"""

import random
import sys
from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

from smlaunch.train import rng, sharded
from smlaunch.train.order import ResumableOrder

_RESERVED = "smlaunch."
GENERATORS, RUN = _RESERVED + "rng", _RESERVED + "run"
"""Under these names a checkpoint holds the global generators, and how far the loop is. A script's own
generator may be called ``rng``: only the prefix is reserved."""


class Component(Protocol):
    """``shared`` and ``own`` give trees of plain values, tensors and arrays, or None; ``restore`` gets what
    they gave, None where a checkpoint has nothing."""

    name: str

    def shared(self) -> Any: ...

    def own(self) -> Any: ...

    def restore(self, shared: Any, own: Any) -> None: ...


class Model:
    """Parameters are shared. Buffers are each rank's own: running averages see that rank's samples."""

    name = "model"

    def __init__(self, model: Any) -> None:
        self._model = model
        self._bare = unwrapped(model)
        self._sharded = sharded.is_sharded(model)

    def shared(self) -> Any:
        own = self._own_names()
        return {name: value for name, value in self._state().items() if name not in own}

    def own(self) -> Any:
        own = self._own_names()
        return {name: value for name, value in self._state().items() if name in own}

    def restore(self, shared: Any, own: Any) -> None:
        state = self._state()
        given = {**shared, **own}
        # Into the module's own dict: its metadata tells load_state_dict() the versions of the layers.
        for name in [name for name in state if name not in given]:
            del state[name]
        for name, value in given.items():
            state[name] = value
        if self._sharded:
            sharded.restore_model(self._model, state)
        else:
            self._bare.load_state_dict(state)

    def _state(self) -> Any:
        return sharded.model_state(self._model) if self._sharded else self._bare.state_dict()

    def _own_names(self) -> Any:
        parameters = {name for name, _ in self._bare.named_parameters(remove_duplicate=False)}
        if self._sharded:
            buffers = {name for name, _ in self._bare.named_buffers(remove_duplicate=False)}
            return buffers - parameters
        return set(self._bare.state_dict()) - parameters


class Optimizer:
    """The gradients are equal on all ranks, and so is what an optimizer makes of them."""

    def __init__(self, name: str, optimizer: Any, model: Any) -> None:
        if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
            raise TypeError(
                "{}: ZeroRedundancyOptimizer keeps another piece on every rank, under no names; "
                "use fully_shard (FSDP) instead".format(name)
            )
        self.name = name
        self._optimizer = optimizer
        self._model = model if model is not None and sharded.is_sharded(model) else None

    def shared(self) -> Any:
        if self._model is not None:
            return sharded.optimizer_state(self._model, self._optimizer)
        return self._optimizer.state_dict()

    def own(self) -> Any:
        return None

    def restore(self, shared: Any, own: Any) -> None:
        if self._model is not None:
            sharded.restore_optimizer(self._model, self._optimizer, shared)
        else:
            self._optimizer.load_state_dict(shared)


class Stateful:
    """Anything with ``state_dict`` and ``load_state_dict``."""

    def __init__(self, name: str, thing: Any, *, is_shared: bool = False) -> None:
        self.name = name
        self._thing = thing
        self._shared = is_shared

    def shared(self) -> Any:
        return self._read() if self._shared else None

    def own(self) -> Any:
        return None if self._shared else self._read()

    def restore(self, shared: Any, own: Any) -> None:
        self._give(shared if self._shared else own)

    def _read(self) -> Any:
        return self._thing.state_dict()

    def _give(self, state: Any) -> None:
        self._thing.load_state_dict(state)


class Generator(Stateful):
    """A random generator of the script's own: Python's, NumPy's or PyTorch's."""

    def _read(self) -> Any:
        if isinstance(self._thing, random.Random):
            return self._thing.getstate()
        if hasattr(self._thing, "bit_generator"):
            return self._thing.bit_generator.state
        return self._thing.get_state()

    def _give(self, state: Any) -> None:
        if isinstance(self._thing, random.Random):
            self._thing.setstate(state)
        elif hasattr(self._thing, "bit_generator"):
            self._thing.bit_generator.state = state
        else:
            self._thing.set_state(state)


class GlobalGenerators:
    name = GENERATORS

    def shared(self) -> Any:
        return None

    def own(self) -> Any:
        return rng.capture()

    def restore(self, shared: Any, own: Any) -> None:
        rng.restore(own)


def collect(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    scaler: Any,
    order: Optional[ResumableOrder],
    registered: Mapping[str, Any],
    shared: Sequence[str],
) -> List[Component]:
    """In the order in which they are restored: the generators last, since restoring may draw from them.
    TypeError with a line for each thing that has no state to be read, ValueError with one for each name that
    is taken."""
    taken = ["name {!r}: {}".format(name, why) for name, why in map(_why_taken, registered) if why]
    if taken:
        raise ValueError("\n".join(taken))
    found: List[Component] = []
    problems = []
    given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "order": order}
    named: Dict[str, Any] = {name: thing for name, thing in given.items() if thing is not None}
    module = model if hasattr(model, "named_parameters") else None
    for name, thing in {**named, **registered}.items():
        has_state = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
        if name == "model" and has_state and module is not None:
            found.append(Model(thing))
        elif _is_optimizer(thing) or (name == "optimizer" and has_state):
            found.append(Optimizer(name, thing, module))
        elif _is_generator(thing):
            found.append(Generator(name, thing))
        elif has_state:
            found.append(Stateful(name, thing, is_shared=name in shared))
        else:
            problems.append(
                "{}: a {} has no state_dict() and load_state_dict(); write these two for it".format(
                    name, type(thing).__name__
                )
            )
    unknown = [name for name in shared if name not in registered]
    if unknown:
        problems.append("shared: nothing is registered as {}".format(", ".join(unknown)))
    if problems:
        raise TypeError("\n".join(problems))
    return [*found, GlobalGenerators()]


def _why_taken(name: str) -> Tuple[str, str]:
    """The name, and why a component cannot be called so; empty when it can."""
    if not name or not name.isprintable():
        return name, "a component's name is text that can be printed"
    if name.startswith(_RESERVED):
        return name, "names that begin with {} are reserved; choose another one".format(_RESERVED)
    if name == "model.buffers":
        return name, "the model's buffers go by it; choose another one"
    return name, ""


def unwrapped(model: Any) -> Any:
    """The script's own module below DistributedDataParallel and torch.compile, whose names have no prefix."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and is_ddp(model):
            inner = model.module
        if inner is None:
            return model
        model = inner


def is_ddp(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.parallel.DistributedDataParallel)


def _is_optimizer(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.optim.Optimizer)


def _is_generator(thing: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (
        isinstance(thing, random.Random)
        or (torch is not None and isinstance(thing, torch.Generator))
        or (numpy is not None and isinstance(thing, numpy.random.Generator))
    )
