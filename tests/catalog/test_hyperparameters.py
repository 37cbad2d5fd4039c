"""Hyperparameters of the built-in algorithms: each with a source, and what is wrong with their values."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.catalog.algorithms import find_algorithm, known_algorithms
from smlaunch.catalog.hyperparameters import (
    Hyperparameter,
    hyperparameter_sources,
    hyperparameters_of,
    page_of,
)
from smlaunch.strategies.builtin_hyperparameters import (
    find_contradictions,
    find_unknown_names,
    find_wrong_values,
)
from tests.tables import table


def test_every_hyperparameter_of_every_algorithm_has_a_source() -> None:
    assert len(known_algorithms()) == 24
    sources = hyperparameter_sources()
    for algorithm in known_algorithms().values():
        hyperparameters = hyperparameters_of(algorithm.id)
        assert hyperparameters, algorithm.id
        assert page_of(algorithm.id).startswith("https://docs.aws.amazon.com/sagemaker/latest/dg/")
        for hyperparameter in hyperparameters.values():
            assert hyperparameter.sources, (algorithm.id, hyperparameter)
            assert set(hyperparameter.sources) <= set(sources), (algorithm.id, hyperparameter)


def test_a_default_that_is_a_word_is_taken() -> None:
    assert hyperparameters_of("knn")["faiss_index_ivf_nlists"].takes("auto")


def test_those_that_are_required_are_known() -> None:
    for algorithm in known_algorithms().values():
        assert set(algorithm.required_hyperparameters) <= set(hyperparameters_of(algorithm.id)), algorithm.id


@table(
    ("hyperparameter", "right", "wrong"),
    [
        (
            Hyperparameter("n", "integer", (), low=1, high=9),
            ("1", "9", "3.0"),
            ("0", "10", "1.5", "x", "nan"),
        ),
        (Hyperparameter("n", "number", (), low=0, excludes_low=True), ("1e-9", "7"), ("0", "-1", "inf", "")),
        (Hyperparameter("n", "number", (), high=1, excludes_high=True), ("-5", "0.99"), ("1", "2")),
        (Hyperparameter("n", "integer", (), low=1, values=("auto",)), ("auto", "2"), ("0", "Auto")),
        (Hyperparameter("n", "truth", ()), ("true", "True", "false", "0", "1"), ("yes", "2", "")),
        (Hyperparameter("n", "text", (), values=("a", "b")), ("a", "b"), ("c", "A", "")),
        (Hyperparameter("n", "text", ()), ("a", "", "[1, 2]"), ()),
    ],
)
def test_values(hyperparameter: Hyperparameter, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    assert [text for text in right if not hyperparameter.takes(text)] == []
    assert [text for text in wrong if hyperparameter.takes(text)] == []


@table(
    ("name", "hyperparameters", "words"),
    [
        ("xgboost", {"num_class": 3}, "num_class is for the objectives"),
        ("xgboost", {"objective": "reg:linear", "eval_metric": "rmse,auc"}, "auc is for objectives binary"),
        ("xgboost", {"eval_metric": "aft-nloglik"}, "survival:aft"),
        ("xgboost", {"monotone_constraints": "(1, 0)"}, "tree_method exact or hist"),
        ("linear-learner", {"predictor_type": "multiclass_classifier"}, "needs num_classes"),
        ("pca", {"feature_dim": 5, "num_components": 6}, "6 are more than there are features (5"),
        ("knn", {"dimension_reduction_type": "sign"}, "dimension_reduction_type needs it"),
        ("ipinsights", {"random_negative_sampling_rate": 500}, "from 1 to 500 together"),
        ("semantic-segmentation", {"lr_scheduler": "step"}, "lr_scheduler step needs it"),
        ("image-classification", {"image_shape": "224,224"}, "3,224,224"),
        ("image-classification", {"checkpoint_frequency": 9, "epochs": 2}, "more than epochs"),
        ("image-classification", {"use_pretrained_model": 1, "num_layers": 20}, "no pretrained model"),
        ("seq2seq", {"min_num_epochs": 9, "max_num_epochs": 2}, "more than max_num_epochs"),
        ("seq2seq", {"rnn_num_hidden": 7}, "an even number"),
        ("blazingtext", {"min_char": 9, "max_char": 2}, "more than max_char"),
        ("autogluon-tabular", {"num_stack_levels": 1}, "at least 2 folds"),
    ],
)
def test_what_does_not_go_together(name: str, hyperparameters: dict[str, Any], words: str) -> None:
    algorithm = find_algorithm(name)
    assert algorithm is not None
    (problem,) = find_contradictions(algorithm, hyperparameters)
    assert words in problem.message


GOOD = {
    "xgboost": {
        "num_round": 9,
        "objective": "multi:softprob",
        "num_class": 3,
        "eta": 0.1,
        "eval_metric": "mlogloss,merror",
        "tree_method": "hist",
        "monotone_constraints": "(1,0)",
        "_tuning_objective_metric": "validation:merror",
        "sagemaker_job_name": "x",
        "use_dask_gpu_training": "true",
    },
    "linear-learner": {"predictor_type": "multiclass_classifier", "num_classes": 4, "wd": "auto", "l1": 0},
    "kmeans": {"k": 3, "feature_dim": 9, "force_dense": "True", "eval_metrics": '["msd", "ssd"]'},
    "forecasting-deepar": {"time_freq": "5min", "cardinality": "[3, 4]", "num_dynamic_feat": ""},
    "image-classification": {"num_layers": 18, "image_shape": "3,224,224", "early_stopping": True},
    "object2vec": {"comparator_list": "hadamard, concat", "enc0_layers": "auto", "enc1_layers": 4},
    "tabtransformer": {"input_dim": 32, "attn_dropout": 0.5},
    "catboost": {"max_bin": "Auto", "depth": 6},
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right(name: str) -> None:
    algorithm = find_algorithm(name)
    assert algorithm is not None
    hyperparameters = GOOD[name]
    assert list(find_unknown_names(algorithm, hyperparameters)) == []
    assert list(find_wrong_values(algorithm, hyperparameters)) == []
    assert list(find_contradictions(algorithm, hyperparameters)) == []
