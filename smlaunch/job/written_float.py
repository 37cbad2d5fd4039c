"""A number of a job file, with the text that the file has for it."""

from __future__ import annotations

from typing import Any


class WrittenFloat(float):
    """A number that is shown, and sent as a hyperparameter, as the file has it: ``2.10`` and ``1e3``, which a
    version, a name or a whole number for an algorithm may be."""

    text: str

    def __new__(cls, value: float, text: str) -> WrittenFloat:
        number = super().__new__(cls, value)
        number.text = text
        return number

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (float(self), self.text)
