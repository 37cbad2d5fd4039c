"""The components of a checkpoint: each object by its name, with how its state is read and restored.

Shared state is equal on all ranks and is saved once. Everything else is each rank's own, which is right for
any state but larger. A rank that did not exist when the checkpoint was saved gets the own state of rank
``rank % saved``.
"""

import random
import sys
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol, Sequence

from smlaunch.train import fsdp_state, rng
from smlaunch.train.resumable_order import ResumableOrder

_RESERVED_NAME_PREFIX = "smlaunch."
"""Names of the global generators and of the loop's position in a checkpoint begin with it; a script's own
generator may be called ``rng``."""
GLOBAL_GENERATORS = _RESERVED_NAME_PREFIX + "rng"
LOOP_STATE = _RESERVED_NAME_PREFIX + "run"


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
        self._is_sharded = fsdp_state.is_sharded(model)

    def shared_state(self) -> Any:
        own_names = self._buffer_names()
        return {name: value for name, value in self._read_state_dict().items() if name not in own_names}

    def own_state(self) -> Any:
        own_names = self._buffer_names()
        return {name: value for name, value in self._read_state_dict().items() if name in own_names}

    def restore(self, shared_state: Any, own_state: Any) -> None:
        """Load the model's saved parameters (``shared_state``: equal on all ranks) and buffers
        (``own_state``: this rank's) into the module, in place."""
        saved_state = {**shared_state, **own_state}
        # The module's present state_dict, with the saved values: load_state_dict() also needs its metadata,
        # the versions of the layers' formats.
        state_dict = self._read_state_dict()
        for name in list(state_dict):
            if name not in saved_state:
                del state_dict[name]
        state_dict.update(saved_state)
        # _model is as the script passed it; _module is the one inside DDP or torch.compile().
        if self._is_sharded:  # by FSDP, which has a loading function of its own
            fsdp_state.load_model_state(self._model, state_dict)
        else:
            self._module.load_state_dict(state_dict)

    def _read_state_dict(self) -> Any:
        return fsdp_state.model_state(self._model) if self._is_sharded else self._module.state_dict()

    def _buffer_names(self) -> Any:
        """Return the names of the buffers: of what the module's state_dict() has beside the parameters."""
        parameter_names = {name for name, _ in self._module.named_parameters(remove_duplicate=False)}
        if self._is_sharded:
            buffer_names = {name for name, _ in self._module.named_buffers(remove_duplicate=False)}
            return buffer_names - parameter_names
        return set(self._module.state_dict()) - parameter_names


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
        self._model = model if model is not None and fsdp_state.is_sharded(model) else None

    def shared_state(self) -> Any:
        if self._model is not None:
            return fsdp_state.optimizer_state(self._model, self._optimizer)
        return self._optimizer.state_dict()

    def own_state(self) -> Any:
        return None

    def restore(self, shared_state: Any, own_state: Any) -> None:
        if self._model is not None:
            fsdp_state.load_optimizer_state(self._model, self._optimizer, shared_state)
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
    name = GLOBAL_GENERATORS

    def shared_state(self) -> Any:
        return None

    def own_state(self) -> Any:
        return rng.capture_generator_states()

    def restore(self, shared_state: Any, own_state: Any) -> None:
        rng.restore_generator_states(own_state)


def collect_components(
    model: Any,
    optimizer: Any,
    scheduler: Any,
    scaler: Any,
    order: Optional[ResumableOrder],
    registered_objects: Mapping[str, Any],
    shared_names: Sequence[str],
) -> List[Component]:
    """Return the components of a checkpoint, in the order in which they are restored. Each saves and restores
    the state of one object of the script; the last one that of the global random generators, from which
    restoring the others may draw.

    ``order``: of the samples. ``registered_objects``: further objects by name; those in ``shared_names`` are
    equal on all ranks and saved once. Raises TypeError with a line for each object without state.
    """
    _check_component_names(registered_objects)  # ValueError for a name that is not allowed
    script_objects = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "order": order,
    }
    object_by_name: Dict[str, Any] = {
        name: script_object for name, script_object in script_objects.items() if script_object is not None
    }
    object_by_name.update(registered_objects)
    components: List[Component] = []
    problems: List[str] = []
    for name, script_object in object_by_name.items():
        component = _create_component(name, script_object, model, is_shared=name in shared_names)
        if component is not None:
            components.append(component)
        else:
            problems.append(
                "{}: a {} has no state_dict() and load_state_dict(); add these two methods".format(
                    name, type(script_object).__name__
                )
            )
    unknown_names = [name for name in shared_names if name not in registered_objects]
    if unknown_names:
        problems.append("shared: nothing is registered as {}".format(", ".join(unknown_names)))
    if problems:
        raise TypeError("\n".join(problems))
    return [*components, GlobalGeneratorsComponent()]


def _create_component(name: str, script_object: Any, model: Any, is_shared: bool) -> Optional[Component]:
    """Return the component that saves and restores one of the script's objects; None if it has no state.
    ``is_shared``: the state is equal on all ranks and saved once, which models and optimizers decide
    themselves."""
    # Only a module can tell which parameters an optimizer's state belongs to.
    module = model if hasattr(model, "named_parameters") else None
    has_state = hasattr(script_object, "state_dict") and hasattr(script_object, "load_state_dict")
    if name == "model" and has_state and module is not None:
        return ModelComponent(script_object)  # parameters are equal on all ranks, buffers each rank's own
    if _is_optimizer(script_object) or (name == "optimizer" and has_state):
        return OptimizerComponent(name, script_object, module)  # state that is equal on all ranks
    if _is_generator(script_object):  # of random numbers
        return GeneratorComponent(name, script_object)
    if has_state:
        return StatefulComponent(name, script_object, is_shared=is_shared)
    return None


def _check_component_names(names: Iterable[str]) -> None:
    """Raise ValueError with a line for each name that a component of a checkpoint cannot have."""
    problems: List[str] = []
    for name in names:
        problem = _find_component_name_problem(name)
        if problem is not None:
            problems.append("name {!r}: {}".format(name, problem))
    if problems:
        raise ValueError("\n".join(problems))


def _find_component_name_problem(name: str) -> Optional[str]:
    """Return why a component of a checkpoint cannot have this name; None if it can."""
    if not name or not name.isprintable():
        return "a component's name must be printable text"
    if name.startswith(_RESERVED_NAME_PREFIX):  # "smlaunch.", for components of our own
        return "names that begin with {} are reserved; choose another one".format(_RESERVED_NAME_PREFIX)
    if name == "model.buffers":  # as the buffers of a model are called in traces
        return "reserved for the model's buffers; choose another one"
    return None


def unwrap_model(model: Any) -> Any:
    """Return the script's own module inside DistributedDataParallel and torch.compile, in whichever order it
    was wrapped. Its parameter names do not have the wrappers' prefixes."""
    while True:
        inner_module = getattr(model, "_orig_mod", None)  # what torch.compile() has wrapped
        if inner_module is None and is_ddp(model):
            inner_module = model.module
        if inner_module is None:
            return model
        model = inner_module


def is_ddp(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.parallel.DistributedDataParallel)


def _is_optimizer(candidate: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(candidate, torch.optim.Optimizer)


def _is_generator(candidate: Any) -> bool:
    """Return whether an object is a random generator of Python, PyTorch or NumPy. Imports neither of them."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    return (
        isinstance(candidate, random.Random)
        or (torch is not None and isinstance(candidate, torch.Generator))
        or (numpy is not None and isinstance(candidate, numpy.random.Generator))
    )
