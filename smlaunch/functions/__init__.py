"""Run a Python function as a job: ``submit`` and ``remote`` (docs/functions.md)."""
