"""What runs inside the job on every host: PID 1, which turns the SageMaker contract into running ranks.

Stdlib only, Python 3.8+, and nothing of smlaunch but ``protocol``. It travels as one zip (runs/bundle.py)
and is read best from main.py downwards.
"""
