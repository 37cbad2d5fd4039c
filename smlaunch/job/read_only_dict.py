"""The mappings of a job, which nobody can change once the job is made."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class ReadOnlyDict(dict[_Key, _Value]):
    """A dict that raises TypeError where it would be changed: a value that is set on a job that was made
    without it would not be sent. Copies by ``dict(...)`` and ``|`` are ordinary dicts."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "a job is read-only; its with_changes(...) returns a copy with another mapping, such as "
            "hyperparameters={**job.hyperparameters, 'lr': 0.1}"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)
