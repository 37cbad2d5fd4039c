"""Families of instance types without jobs, against the service's own model."""

from __future__ import annotations

import botocore.session

from smlaunch.catalog.type_families import OTHER_FAMILIES, RETIRED_FAMILIES, TRAINING_FAMILIES, family_of


def families_by_shape() -> dict[str, set[str]]:
    model = botocore.session.get_session().get_service_model("sagemaker")
    values_by_shape = {
        name: getattr(model.shape_for(name), "enum", [])
        for name in model.shape_names
        if "InstanceType" in name
    }
    return {
        name: {family_of(value) for value in values if value.startswith("ml.") and value.count(".") == 2}
        for name, values in values_by_shape.items()
    }


def test_they_are_those_of_the_model() -> None:
    families = families_by_shape()
    training, processing = families.pop("TrainingInstanceType"), families.pop("ProcessingInstanceType")
    others = set().union(*families.values()) - training - processing - {"geospatial"}
    assert others == OTHER_FAMILIES
    assert training - processing == TRAINING_FAMILIES
    assert processing - training == set()
    assert training >= RETIRED_FAMILIES
