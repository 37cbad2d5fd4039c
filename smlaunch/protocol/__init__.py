"""What client, runtime and training script say to each other.

Stdlib only and Python 3.8+: these modules are copied into the zip that runs inside the job's containers.
Every document carries ``version`` as ``MAJOR.MINOR``; a reader refuses an unknown major version and ignores
keys it does not know within its own.
"""
