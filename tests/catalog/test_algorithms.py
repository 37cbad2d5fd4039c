"""What the table of algorithms holds as a whole; row by row it is in tests/strategies/test_builtin.py."""

from __future__ import annotations

import pytest

from smlaunch.catalog.algorithms import (
    algorithm_versions,
    find_algorithm,
    find_algorithm_image,
    known_algorithms,
    unknown_algorithm_message,
)
from smlaunch.catalog.images import UnknownImage
from tests.tables import table


def test_there_are_24_of_which_jumpstart_hosts_seven() -> None:
    algorithms = known_algorithms().values()
    assert len(algorithms) == 24
    assert {row.id for row in algorithms if row.jumpstart} == {
        *("autogluon-tabular", "catboost", "lightgbm", "tabtransformer", "image-classification-tensorflow"),
        *("object-detection-tensorflow", "text-classification-tensorflow"),
    }


def test_those_that_keep_checkpoints() -> None:
    assert {row.id for row in known_algorithms().values() if row.checkpoints} == {
        *("image-classification", "object-detection", "semantic-segmentation", "xgboost")
    }


@table("name", known_algorithms())
def test_each_is_found_by_its_id_and_by_its_name(name: str) -> None:
    row = known_algorithms()[name]
    assert find_algorithm(name) is find_algorithm(row.name) is find_algorithm(name.upper()) is row


def test_names_that_are_none() -> None:
    assert find_algorithm("train.py") is None
    assert (
        unknown_algorithm_message("blazing-txt")
        == "there is no built-in algorithm 'blazing-txt', did you mean 'blazingtext'?"
    )


def test_images() -> None:
    kmeans, catboost = known_algorithms()["kmeans"], known_algorithms()["catboost"]
    image = find_algorithm_image(kmeans, "us-west-2", "aws", "cpu")
    assert image.uri == "174872318107.dkr.ecr.us-west-2.amazonaws.com/kmeans:1"
    assert algorithm_versions(kmeans) == ["1"]
    # An image of that name, and no beginning of another version.
    xgboost = known_algorithms()["xgboost"]
    first = find_algorithm_image(xgboost, "us-east-1", "aws", "cpu", "1")
    assert (first.uri, first.version) == ("811284229777.dkr.ecr.us-east-1.amazonaws.com/xgboost:1", "1")
    assert find_algorithm_image(xgboost, "us-east-1", "aws", "cpu").version == "3.2-0"
    assert find_algorithm_image(xgboost, "us-east-1", "aws", "cpu", "1.7").version == "1.7-1"
    with pytest.raises(UnknownImage, match="JumpStart hosts CatBoost") as caught:
        find_algorithm_image(catboost, "us-west-2", "aws", "cpu")
    assert caught.value.unknown_part == "jumpstart"
    with pytest.raises(UnknownImage, match="K-Means has no version 2; it has 1"):
        find_algorithm_image(kmeans, "us-west-2", "aws", "cpu", "2")
