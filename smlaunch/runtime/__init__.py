"""What runs inside the job on every host: PID 1, which turns the SageMaker contract into running ranks.

Stdlib only, Python 3.8+, and nothing of smlaunch but ``contract``. It travels as one zip
(runs/runtime_archive.py). Start reading at main.py.
"""
