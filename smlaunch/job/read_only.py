"""The mappings and lists of a job, which nobody can change once the job is made: a value that is set on a
job that was made without it would not be sent. Copies, such as by ``dict(...)``, ``|`` and ``+``, are
ordinary ones.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise TypeError(
        "a job is read-only; its with_changes(...) returns a copy with another mapping, such as "
        "hyperparameters={**job.hyperparameters, 'lr': 0.1}"
    )


class ReadOnlyDict(dict[_Key, _Value]):
    """A dict that raises TypeError where it would be changed."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


class ReadOnlyList(list[_Value]):
    """A list that raises TypeError where it would be changed."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)
