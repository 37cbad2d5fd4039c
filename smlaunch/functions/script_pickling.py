"""How functions, classes and objects of a script are pickled, on the way to a host and on the way back.

What cloudpickle cannot pickle, or makes anew as something else, is mended here once for both directions. The
file travels beside host_program.py: standard library only, Python 3.8 and later.
"""

import contextlib
import functools
import inspect
import io
import pickle
import sys
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Callable, Dict, Iterator, Tuple, TypeVar

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
                reduced = super().reducer_override(value)
                if reduced is NotImplemented:
                    return reduced
                if reduced[0] is internals._make_skeleton_class:  # noqa: SLF001
                    return _with_namespace(value, reduced)
                if reduced[0] is internals._make_skeleton_enum:  # noqa: SLF001
                    return _with_members(value, reduced)
                return reduced
            if type(value) is _CACHED_FUNCTION:
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
            elif type(value) is io.BufferedReader and "+" not in value.mode:
                return _reduce_binary_file(value)
            if isinstance(value, types.FunctionType) and _is_single_dispatch(value):
                value._clear_cache()  # type: ignore[attr-defined]  # noqa: SLF001  which depends on past calls
            return super().reducer_override(value)

    return ScriptPickler


class ScriptUnpickler(pickle.Unpickler):
    """Makes no class that this process has: one that it has defined or got, or, with ``finds_by_name``, one
    that its module has under the qualified name. cloudpickle would make it once more, so that metaclass and
    ``__init_subclass__`` see it twice, and would set the attributes of the existing one anew."""

    def __init__(self, file: IO[bytes], *, finds_by_name: bool) -> None:
        super().__init__(file)
        import cloudpickle.cloudpickle as internals  # type: ignore[import-not-found,import-untyped,unused-ignore]

        self._internals: Any = internals
        self._own_classes = set(internals._DYNAMIC_CLASS_TRACKER_BY_CLASS)  # noqa: SLF001
        self._finds_by_name = finds_by_name

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        replacement = {
            "_make_skeleton_class": self._make_class,
            "_make_skeleton_enum": self._make_enum,
            "_class_setstate": self._set_state,
        }.get(name)
        return (
            found if replacement is None or found is not getattr(self._internals, name, None) else replacement
        )

    def _make_class(
        self, metaclass: Any, name: str, bases: Any, namespace: Dict[str, Any], class_id: str, extra: Any
    ) -> Any:
        existing = self._find(class_id, namespace.get("__module__"), namespace.get("__qualname__", name))
        if existing is not None:
            return existing
        with self._without_hooks(bases):
            make: Any = self._internals._make_skeleton_class  # noqa: SLF001
            return make(self._constructor(metaclass), name, bases, namespace, class_id, extra)

    def _make_enum(
        self, bases: Any, name: str, qualname: str, members: Any, module: str, class_id: str, extra: Any
    ) -> Any:
        existing = self._find(class_id, module, qualname)
        if existing is not None:
            return existing
        with self._without_hooks(bases):
            make: Any = self._internals._make_skeleton_enum  # noqa: SLF001
            return make(bases, name, qualname, members, module, class_id, extra)

    def _find(self, class_id: str, module: Any, qualname: str) -> Any:
        by_id: Any = self._internals._DYNAMIC_CLASS_TRACKER_BY_ID  # noqa: SLF001
        existing = by_id.get(class_id)
        if existing is None and self._finds_by_name:
            existing = sys.modules.get(module)
            for part in qualname.split("."):
                existing = getattr(existing, part, None)
            if not isinstance(existing, type) or existing.__qualname__ != qualname:
                return None
            self._own_classes.add(existing)
        return existing

    def _set_state(self, class_object: Any, state: Any) -> Any:
        if class_object in self._own_classes:
            return class_object
        return self._internals._class_setstate(class_object, state)  # noqa: SLF001

    def _travels(self, class_object: Any) -> bool:
        """Whether the class was made from a pickle, or is this process's own that travels by value."""
        by_class: Any = self._internals._DYNAMIC_CLASS_TRACKER_BY_CLASS  # noqa: SLF001
        return class_object in by_class or class_object in self._own_classes

    @contextlib.contextmanager
    def _without_hooks(self, bases: Any) -> Iterator[None]:
        """The ``__init_subclass__`` of a base that travels has run where the class was defined, and what it
        did travels too. That of a base in a module runs: the module is a new one here."""
        hooks = []
        all_bases = dict.fromkeys(part for base in types.resolve_bases(bases) for part in base.__mro__)
        for base in all_bases:
            if self._travels(base) and "__init_subclass__" in vars(base):
                hooks.append((base, vars(base)["__init_subclass__"]))
                type.__delattr__(base, "__init_subclass__")
        try:
            yield
        finally:
            for base, hook in hooks:
                type.__setattr__(base, "__init_subclass__", hook)

    def _constructor(self, metaclass: Any) -> Any:
        """Return what makes a class of the metaclass. What a metaclass that travels does to a class has been
        done where the class was defined: here the part of it runs that is of a module."""
        if not self._travels(metaclass):
            return metaclass
        known = next(part for part in metaclass.__mro__ if not self._travels(part))

        def construct(name: str, bases: Any, namespace: Dict[str, Any], **_: Any) -> Any:
            class_object = known.__new__(metaclass, name, bases, namespace)
            known.__init__(class_object, name, bases, namespace)
            return class_object

        return construct


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


def _with_namespace(class_object: type, reduced: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return cloudpickle's reduction of a class such that the class is made with its qualified name, by which
    it is found again, with its slots, and with all attributes in their order. cloudpickle makes one whose
    objects have a ``__dict__``, only names the slots in an attribute, sorts the attributes, and leaves out
    those that are the same object in a base, which another base of a class below may not have."""
    make, (constructor, name, bases, namespace, *rest), (attributes, slot_state), *others = reduced
    namespace = {**namespace, "__qualname__": class_object.__qualname__}
    if "__slots__" in vars(class_object) and not issubclass(class_object, tuple):  # a named tuple has its way
        slots = [
            slot
            for slot, member in vars(class_object).items()
            if (
                type(member) is _MEMBER and member.__objclass__ is class_object
            )  # its name is mangled already
            or (slot in ("__dict__", "__weakref__") and type(member) is types.GetSetDescriptorType)
        ]
        namespace["__slots__"] = sorted(slots)
        attributes = {name: part for name, part in attributes.items() if name not in slots}
    for name_in_class, part in vars(class_object).items():
        is_given = not name_in_class.startswith(("__", "_abc_")) or type(part) is types.FunctionType
        if is_given and type(part) is not _MEMBER:
            attributes.setdefault(name_in_class, part)
    state = (_in_order(class_object, attributes), slot_state)
    return (make, (constructor, name, bases, namespace, *rest), state, *others)


def _with_members(enum_class: Any, reduced: Tuple[Any, ...]) -> Tuple[Any, ...]:
    """Return cloudpickle's reduction of an enumeration with all of its members. cloudpickle leaves out those
    that an iteration does: second names of a value, and combined flags."""
    make, (bases, name, qualname, _, *rest), (attributes, slot_state), *others = reduced
    members = {member_name: member.value for member_name, member in enum_class.__members__.items()}
    attributes = {name: part for name, part in attributes.items() if name not in members}
    state = (_in_order(enum_class, attributes), slot_state)
    return (make, (bases, name, qualname, members, *rest), state, *others)


def _in_order(class_object: type, attributes: Dict[str, Any]) -> Dict[str, Any]:
    places = {name: place for place, name in enumerate(vars(class_object))}
    return dict(sorted(attributes.items(), key=lambda item: places.get(item[0], -1)))


def _reduce_binary_file(file: Any) -> Tuple[Any, ...]:
    """Return how the content of an open file is read elsewhere, from the same position on."""
    position = file.tell()
    file.seek(0)
    content = file.read()
    file.seek(position)
    return io.BytesIO, (), (content, position, None)


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
