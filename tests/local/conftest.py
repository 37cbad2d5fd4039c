"""The fixture of isolation levels for all tests that run hosts."""

from tests.local.executors.conftest import level

__all__ = ["level"]
