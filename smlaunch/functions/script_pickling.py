"""How functions, classes and objects of a script are pickled, on the way to a host and on the way back.

What cloudpickle cannot pickle, or makes anew as something else, is mended here once for both directions. The
file travels beside host_program.py: standard library only, Python 3.8 and later.
"""

import contextlib
import enum
import functools
import inspect
import pickle
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Tuple, TypeVar

_Result = TypeVar("_Result")
_DEEP_RECURSION, _DEEP_STACK_BYTES = 20_000, 256 << 20
"""For values that are nested some thousand deep. Only the pages of the stack that are used take memory."""

_CACHED_FUNCTION: Any = type(functools.lru_cache(maxsize=1)(len))
_MEMBER: Any = types.MemberDescriptorType
_WEAK_MAPPINGS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


def script_pickler_class(cloudpickle: Any) -> Any:
    """Return a subclass of cloudpickle's pickler."""

    class ScriptPickler(cloudpickle.CloudPickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            internals = cloudpickle.cloudpickle
            if isinstance(value, type):
                if _has_slots(value) and not internals._should_pickle_by_reference(value):  # noqa: SLF001
                    return _with_slots(value, internals._dynamic_class_reduce(value))  # noqa: SLF001
            elif type(value) is _CACHED_FUNCTION:
                found = internals._lookup_module_and_qualname(value)  # noqa: SLF001
                if found is None or internals._is_registered_pickle_by_value(found[0]):  # noqa: SLF001
                    return _reduce_cached_function(value)
            elif type(value) is functools.cached_property:
                state = {name: part for name, part in vars(value).items() if name != "lock"}
                return functools.cached_property, (value.func,), state
            elif type(value) in _WEAK_MAPPINGS:
                return type(value), (), None, None, iter(list(value.items()))
            elif _is_unstarted_context(value):
                return type(value), (value.func, value.args, value.kwds)
            if isinstance(value, types.FunctionType) and _is_single_dispatch(value):
                value._clear_cache()  # type: ignore[attr-defined]  # noqa: SLF001  which depends on past calls
            return super().reducer_override(value)

    return ScriptPickler


def call_deeply(pickle_value: Callable[[], _Result]) -> _Result:
    """Return what ``pickle_value`` returns. Where values are nested deeper than Python's limit of recursion,
    it is called once more, in a thread with a stack for them. Raises what it raises."""
    try:
        return pickle_value()
    except (RecursionError, pickle.PicklingError) as error:
        if not isinstance(error.__cause__ or error, RecursionError):
            raise
    limit, stack_bytes = sys.getrecursionlimit(), threading.stack_size(_DEEP_STACK_BYTES)
    sys.setrecursionlimit(max(limit, _DEEP_RECURSION))
    try:
        with ThreadPoolExecutor(1) as executor:
            return executor.submit(pickle_value).result()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(stack_bytes)


def _has_slots(class_object: type) -> bool:
    """Whether the class has slots of its own. cloudpickle makes enums and named tuples in their own ways."""
    return "__slots__" in vars(class_object) and not issubclass(class_object, (enum.Enum, tuple))


def _with_slots(class_object: type, reduced: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return cloudpickle's reduction of a class such that the class is made with its slots. cloudpickle makes
    one whose objects have a ``__dict__``, and only names the slots in an attribute."""
    make, (constructor, name, bases, namespace, *rest), (attributes, slot_state), *others = reduced
    slots = [
        slot
        for slot, member in vars(class_object).items()
        if (type(member) is _MEMBER and member.__objclass__ is class_object)  # its name is mangled already
        or (slot in ("__dict__", "__weakref__") and type(member) is types.GetSetDescriptorType)
    ]
    namespace = {**namespace, "__slots__": sorted(slots)}
    attributes = {name: part for name, part in attributes.items() if name not in slots}
    return (make, (constructor, name, bases, namespace, *rest), (attributes, slot_state), *others)


def _reduce_cached_function(cached: Any) -> Tuple[Any, ...]:
    """Return how a function with ``functools.cache`` is made elsewhere: an empty cache around the function
    itself. functools would let it be looked up by its name, in a script that is not there."""
    maxsize = cached.cache_info().maxsize
    is_typed = cached.cache_parameters()["typed"] if hasattr(cached, "cache_parameters") else False
    state = {name: value for name, value in vars(cached).items() if name != "cache_parameters"}
    arguments = (cached.__wrapped__, maxsize, is_typed, functools._CacheInfo)  # noqa: SLF001
    return _CACHED_FUNCTION, arguments, state


def _is_unstarted_context(value: Any) -> bool:
    """Whether this is what a ``contextlib.contextmanager`` returns, before it is entered: a decorator keeps
    it for the function's calls, and its generator can be made again."""
    return (
        type(value) is contextlib._GeneratorContextManager  # noqa: SLF001
        and inspect.getgeneratorstate(value.gen) == inspect.GEN_CREATED
    )


def _is_single_dispatch(function: Any) -> bool:
    return hasattr(function, "_clear_cache") and hasattr(function, "registry")
