"""The components of a checkpoint: each object by its name, with how its state is read and restored.

Shared state is equal on all ranks and is saved once. Everything else is each rank's own, which is right for
any state but larger. A rank that did not exist when the checkpoint was saved gets the own state of rank
``rank % saved``.
"""

import random
import sys
from typing import Any, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

from smlaunch.train import rng, sharded
from smlaunch.train.order import ResumableOrder

_RESERVED = "smlaunch."
"""Names of the global generators and of the loop's position in a checkpoint begin with it; a script's own
generator may be called ``rng``."""
GENERATORS, LOOP_STATE = _RESERVED + "rng", _RESERVED + "run"


class Component(Protocol):
    """``shared_state`` and ``own_state`` return trees of plain values, tensors and arrays, or None;
    ``restore`` gets what they returned, None for state that a checkpoint does not have."""

    name: str

    def shared_state(self) -> Any: ...

    def own_state(self) -> Any: ...

    def restore(self, shared_state: Any, own_state: Any) -> None: ...


class ModelComponent:
    """Parameters are shared. Buffers are each rank's own: running averages depend on that rank's samples."""

    name = "model"

    def __init__(self, model: Any) -> None:
        self._model = model
        self._module = unwrap_model(model)
        self._is_sharded = sharded.is_sharded(model)

    def shared_state(self) -> Any:
        own_names = self._own_names()
        return {name: value for name, value in self._state().items() if name not in own_names}

    def own_state(self) -> Any:
        own_names = self._own_names()
        return {name: value for name, value in self._state().items() if name in own_names}

    def restore(self, shared_state: Any, own_state: Any) -> None:
        """Load both states into the module, in place."""
        state = self._state()
        restored = {**shared_state, **own_state}
        # In the module's own dict: load_state_dict() reads the versions of the layers from its metadata.
        for name in [name for name in state if name not in restored]:
            del state[name]
        for name, value in restored.items():
            state[name] = value
        if self._is_sharded:
            sharded.restore_model(self._model, state)
        else:
            self._module.load_state_dict(state)

    def _state(self) -> Any:
        return sharded.model_state(self._model) if self._is_sharded else self._module.state_dict()

    def _own_names(self) -> Any:
        """Return the names of the buffers."""
        parameters = {name for name, _ in self._module.named_parameters(remove_duplicate=False)}
        if self._is_sharded:
            buffers = {name for name, _ in self._module.named_buffers(remove_duplicate=False)}
            return buffers - parameters
        return set(self._module.state_dict()) - parameters


class OptimizerComponent:
    """Gradients are equal on all ranks, and so is the optimizer's state."""

    def __init__(self, name: str, optimizer: Any, model: Any) -> None:
        if any(base_class.__name__ == "ZeroRedundancyOptimizer" for base_class in type(optimizer).__mro__):
            raise TypeError(
                "{}: ZeroRedundancyOptimizer holds a different, unnamed piece on every rank; "
                "use fully_shard (FSDP) instead".format(name)
            )
        self.name = name
        self._optimizer = optimizer
        self._model = model if model is not None and sharded.is_sharded(model) else None

    def shared_state(self) -> Any:
        if self._model is not None:
            return sharded.optimizer_state(self._model, self._optimizer)
        return self._optimizer.state_dict()

    def own_state(self) -> Any:
        return None

    def restore(self, shared_state: Any, own_state: Any) -> None:
        if self._model is not None:
            sharded.restore_optimizer(self._model, self._optimizer, shared_state)
        else:
            self._optimizer.load_state_dict(shared_state)


class StatefulComponent:
    """Any object with ``state_dict`` and ``load_state_dict``."""

    def __init__(self, name: str, stateful: Any, *, is_shared: bool = False) -> None:
        self.name = name
        self._stateful = stateful
        self._is_shared = is_shared

    def shared_state(self) -> Any:
        return self._get_state() if self._is_shared else None

    def own_state(self) -> Any:
        return None if self._is_shared else self._get_state()

    def restore(self, shared_state: Any, own_state: Any) -> None:
        self._set_state(shared_state if self._is_shared else own_state)

    def _get_state(self) -> Any:
        return self._stateful.state_dict()

    def _set_state(self, state: Any) -> None:
        self._stateful.load_state_dict(state)


class GeneratorComponent(StatefulComponent):
    """A random generator of the script's own: Python's, NumPy's or PyTorch's."""

    def _get_state(self) -> Any:
        if isinstance(self._stateful, random.Random):
            return self._stateful.getstate()
        if hasattr(self._stateful, "bit_generator"):
            return self._stateful.bit_generator.state
        return self._stateful.get_state()

    def _set_state(self, state: Any) -> None:
        if isinstance(self._stateful, random.Random):
            self._stateful.setstate(state)
        elif hasattr(self._stateful, "bit_generator"):
            self._stateful.bit_generator.state = state
        else:
            self._stateful.set_state(state)


class GlobalGeneratorsComponent:
    name = GENERATORS

    def shared_state(self) -> Any:
        return None

    def own_state(self) -> Any:
        return rng.capture()

    def restore(self, shared_state: Any, own_state: Any) -> None:
        rng.restore(own_state)


def collect_components(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    scaler: Any,
    order: Optional[ResumableOrder],
    registered: Mapping[str, Any],
    shared: Sequence[str],
) -> List[Component]:
    """Return the components in the order in which they are restored: generators last, since restoring may
    draw from them. Raises TypeError with a line for each object without state, ValueError with one for each
    name that is not allowed."""
    name_problems = [
        "name {!r}: {}".format(name, problem) for name, problem in map(_name_problem, registered) if problem
    ]
    if name_problems:
        raise ValueError("\n".join(name_problems))
    components: List[Component] = []
    problems = []
    known_objects = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "order": order,
    }
    object_by_name: Dict[str, Any] = {
        name: candidate for name, candidate in known_objects.items() if candidate is not None
    }
    module = model if hasattr(model, "named_parameters") else None
    for name, candidate in {**object_by_name, **registered}.items():
        has_state = hasattr(candidate, "state_dict") and hasattr(candidate, "load_state_dict")
        if name == "model" and has_state and module is not None:
            components.append(ModelComponent(candidate))
        elif _is_optimizer(candidate) or (name == "optimizer" and has_state):
            components.append(OptimizerComponent(name, candidate, module))
        elif _is_generator(candidate):
            components.append(GeneratorComponent(name, candidate))
        elif has_state:
            components.append(StatefulComponent(name, candidate, is_shared=name in shared))
        else:
            problems.append(
                "{}: a {} has no state_dict() and load_state_dict(); add these two methods".format(
                    name, type(candidate).__name__
                )
            )
    unknown = [name for name in shared if name not in registered]
    if unknown:
        problems.append("shared: nothing is registered as {}".format(", ".join(unknown)))
    if problems:
        raise TypeError("\n".join(problems))
    return [*components, GlobalGeneratorsComponent()]


def _name_problem(name: str) -> Tuple[str, str]:
    """Return the name, and why a component cannot have it; empty if it can."""
    if not name or not name.isprintable():
        return name, "a component's name must be printable text"
    if name.startswith(_RESERVED):
        return name, "names that begin with {} are reserved; choose another one".format(_RESERVED)
    if name == "model.buffers":
        return name, "reserved for the model's buffers; choose another one"
    return name, ""


def unwrap_model(model: Any) -> Any:
    """Return the script's own module below DistributedDataParallel and torch.compile, whose names have no
    prefix."""
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


def _is_optimizer(candidate: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(candidate, torch.optim.Optimizer)


def _is_generator(candidate: Any) -> bool:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (
        isinstance(candidate, random.Random)
        or (torch is not None and isinstance(candidate, torch.Generator))
        or (numpy is not None and isinstance(candidate, numpy.random.Generator))
    )
