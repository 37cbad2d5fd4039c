"""The formats that client, runtime and training script exchange.

Stdlib only and Python 3.8+: these modules are copied into the zip that runs inside the job's containers.
Every document has a ``version``, ``MAJOR.MINOR``; a reader refuses an unknown major version and ignores keys
that it does not know within its own.
"""
