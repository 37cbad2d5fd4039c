from churn import config  # noqa: F401
