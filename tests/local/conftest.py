"""The isolation levels, for all that runs hosts."""

from tests.local.executors.conftest import level

__all__ = ["level"]
