"""Families of instance types that SageMaker has for some uses only, and those that are retired."""

from __future__ import annotations

OTHER_FAMILIES = frozenset(
    (
        *("c5d", "c6a", "c6g", "c6gd", "c6gn", "c6id", "c6in", "c7g", "c8a", "c8g", "dl1", "gr6", "i3en"),
        *("inf1", "inf2", "m5d", "m6a", "m6g", "m6gd", "m6id", "m7g", "m8a", "m8g", "r6g", "r6gd", "r6id"),
        *("r7gd", "r8g", "t2"),
    )
)
"""Neither of training nor of processing jobs: of endpoints, notebooks, HyperPod clusters. From the model of
the API in botocore 1.44.5, which a test compares."""

TRAINING_FAMILIES = frozenset(
    (
        *("c5n", "p3dn", "p4d", "p4de", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"),
        *("trn1", "trn1n", "trn2"),
    )
)
"""Of training jobs, not of processing jobs, from the same model."""

RETIRED_FAMILIES = frozenset(("p2",))
"""Still in the model of the API."""

_PURPOSE_BY_FAMILY_PREFIX = {"inf": "Inferentia runs models, and trains none", "t2": "it is for notebooks"}


def family_of(instance_type: str) -> str:
    """``g5`` of ``ml.g5.xlarge``."""
    return instance_type.split(".")[1]


def why_no_job(instance_type: str, trains_model: bool) -> str | None:
    """Return why no job can run on a type, as a clause; None for types that may run it, and for families that
    no table knows. ``trains_model``: it is a training job, and no processing job."""
    family = family_of(instance_type)
    if family in OTHER_FAMILIES:
        purposes = _PURPOSE_BY_FAMILY_PREFIX.items()
        purpose = next((text for prefix, text in purposes if family.startswith(prefix)), "")
        others = f"SageMaker has ml.{family} for endpoints, notebooks or clusters, and for no jobs"
        return f"{others} ({purpose})" if purpose else others
    if family in TRAINING_FAMILIES and not trains_model:
        return f"SageMaker has ml.{family} for training jobs, and not for processing jobs"
    if family in RETIRED_FAMILIES:
        return f"ml.{family} is retired: no image of today has code for its GPUs (NVIDIA K80)"
    return None
