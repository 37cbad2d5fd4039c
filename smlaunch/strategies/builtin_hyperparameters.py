"""What is wrong with the hyperparameters of a built-in algorithm: unknown names, values that it does not
take, and those that do not go together.

What each takes is in ``catalog.hyperparameters``; what goes together is from the same pages, and for XGBoost
from its container's own validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from smlaunch.api.hyperparameter_text import hyperparameter_text
from smlaunch.catalog.algorithms import Algorithm
from smlaunch.catalog.hyperparameters import hyperparameters_of
from smlaunch.errors import Problem
from smlaunch.text.did_you_mean import nearest_match
from smlaunch.text.format import list_names

_OWN_PREFIXES = ("_", "sagemaker_")
"""Of names that SageMaker's tuning, its toolkit and its SDK add."""

_MAX_NAMED = 12
"""Names that a message lists if none is near."""


def find_unknown_names(algorithm: Algorithm, hyperparameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names that the algorithm's page does not have, each with a clause about it."""
    known = hyperparameters_of(algorithm.id)
    for name in hyperparameters:
        if name in known or name.startswith(_OWN_PREFIXES):
            continue
        own_names = (known_name for known_name in known if not known_name.startswith(_OWN_PREFIXES))
        near = _SAME_MEANING.get(algorithm.id, {}).get(name) or nearest_match(name, known)
        hint = f", did you mean {near!r}?" if near else f"; it has {list_names(own_names, _MAX_NAMED)}"
        yield name, f"{algorithm.id} has no hyperparameter {name!r}{hint}"


_SAME_MEANING = {
    "xgboost": {"n_estimators": "num_round", "num_boost_round": "num_round", "random_state": "seed"},
    "lightgbm": {"n_estimators": "num_boost_round", "num_round": "num_boost_round"},
    "catboost": {"n_estimators": "iterations", "num_round": "iterations"},
    "kmeans": {"n_clusters": "k", "max_iter": "local_lloyd_max_iter"},
    "pca": {"n_components": "num_components"},
    "randomcutforest": {"n_estimators": "num_trees"},
    "knn": {"n_neighbors": "k"},
}
"""Names of the libraries that people know, by which they mean another one here."""


_SOURCE_TITLES = {
    "guide": "AWS's page",
    "sdk": "the SageMaker SDK's class",
    "container": "the container's source",
}


def find_wrong_values(algorithm: Algorithm, hyperparameters: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each value outside of what the algorithm takes."""
    known = hyperparameters_of(algorithm.id)
    for name, text in _texts(hyperparameters).items():
        if name in known and not known[name].takes(text):
            sources = ", ".join(_SOURCE_TITLES[source] for source in known[name].sources)
            message = f"{algorithm.id} takes {known[name].describe()} ({sources}), not {text!r}"
            yield Problem(f"hyperparameters.{name}", message)


def find_contradictions(algorithm: Algorithm, hyperparameters: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is missing beside other values, and what excludes them."""
    check = _CHECK_BY_ALGORITHM.get(algorithm.id)
    if check is not None:
        for name, message in check(_texts(hyperparameters)):
            yield Problem(f"hyperparameters.{name}", message)


def _texts(hyperparameters: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as the algorithm gets them."""
    return {name: hyperparameter_text(value, is_verbatim=True) for name, value in hyperparameters.items()}


def _number(texts: Mapping[str, str], name: str) -> float | None:
    """Return a hyperparameter's value; None if it is not stated, or no number."""
    try:
        return float(texts[name])
    except (KeyError, ValueError):
        return None


Findings = Iterator[tuple[str, str]]
"""Name of a hyperparameter, and what is wrong with it."""

_MULTI_CLASS = ("multi:softmax", "multi:softprob")


def _check_xgboost(texts: Mapping[str, str]) -> Findings:
    objective = texts.get("objective")
    if objective in _MULTI_CLASS and "num_class" not in texts:
        yield "num_class", f"it is missing: objective {objective} needs num_class, the number of classes"
    if objective not in _MULTI_CLASS and "num_class" in texts:
        stated = f"objective is {objective}" if objective else "no objective is stated"
        yield (
            "num_class",
            f"num_class is for the objectives {' and '.join(_MULTI_CLASS)}, and {stated}; leave it out",
        )
    metrics = [metric.strip() for metric in texts.get("eval_metric", "").split(",")]
    if "auc" in metrics and objective is not None and not objective.startswith(("binary:", "rank:")):
        yield (
            "eval_metric",
            f"auc is for objectives binary:... and rank:..., not {objective}; take another one",
        )
    if "aft-nloglik" in metrics and objective != "survival:aft":
        yield "eval_metric", "aft-nloglik is for objective survival:aft; take another one"
    for name, methods in (
        ("monotone_constraints", ("exact", "hist")),
        ("interaction_constraints", ("exact", "hist", "approx")),
    ):
        if name in texts and texts.get("tree_method") not in methods:
            yield name, f"it needs tree_method {' or '.join(methods)}; state it"


def _check_linear_learner(texts: Mapping[str, str]) -> Findings:
    if texts.get("predictor_type") == "multiclass_classifier" and "num_classes" not in texts:
        yield "num_classes", "it is missing: predictor_type multiclass_classifier needs num_classes"


def _check_pca(texts: Mapping[str, str]) -> Findings:
    components, features = _number(texts, "num_components"), _number(texts, "feature_dim")
    if components is not None and features is not None and components > features:
        yield (
            "num_components",
            (f"{components:g} are more than there are features ({features:g}, feature_dim); lower it"),
        )


def _check_knn(texts: Mapping[str, str]) -> Findings:
    target, features = _number(texts, "dimension_reduction_target"), _number(texts, "feature_dim")
    if "dimension_reduction_type" in texts and "dimension_reduction_target" not in texts:
        yield "dimension_reduction_target", "it is missing: dimension_reduction_type needs it"
    if target is not None and features is not None and target >= features:
        yield "dimension_reduction_target", f"{target:g} is not less than feature_dim, {features:g}"
    metric = texts.get("index_metric", "L2")
    if texts.get("index_type") == "faiss.IVFPQ" and metric != "L2":
        yield "index_metric", f"index_type faiss.IVFPQ does not support {metric}; take L2"


def _check_ipinsights(texts: Mapping[str, str]) -> Findings:
    names = ("random_negative_sampling_rate", "shuffled_negative_sampling_rate")
    rates = [_number(texts, name) if name in texts else 1 for name in names]
    if None not in rates and not 1 <= sum(rate for rate in rates if rate is not None) <= 500:
        yield names[0], f"it and {names[1]} must be from 1 to 500 together"


def _check_segmentation(texts: Mapping[str, str]) -> Findings:
    if texts.get("lr_scheduler") == "step" and "lr_scheduler_step" not in texts:
        yield "lr_scheduler_step", "it is missing: lr_scheduler step needs it"


_SMALL_IMAGE_LAYERS = ("20", "32", "44", "56", "110")


def _check_image_classification(texts: Mapping[str, str]) -> Findings:
    frequency, epochs = _number(texts, "checkpoint_frequency"), _number(texts, "epochs")
    if frequency is not None and epochs is not None and frequency > epochs:
        yield "checkpoint_frequency", f"{frequency:g} is more than epochs, {epochs:g}: none would be saved"
    layers = texts.get("num_layers")
    if texts.get("use_pretrained_model") == "1" and layers in _SMALL_IMAGE_LAYERS:
        yield (
            "num_layers",
            f"there is no pretrained model of {layers} layers; take 18, 34, 50, 101, 152 or 200",
        )
    shape = texts.get("image_shape")
    sizes = [] if shape is None else [size.strip() for size in shape.split(",")]
    if shape is not None and not (len(sizes) == 3 and all(size.isdecimal() for size in sizes)):
        yield "image_shape", f"channels, height and width are needed, such as 3,224,224, not {shape!r}"


def _check_seq2seq(texts: Mapping[str, str]) -> Findings:
    least, most = _number(texts, "min_num_epochs"), _number(texts, "max_num_epochs")
    if least is not None and most is not None and least > most:
        yield "min_num_epochs", f"{least:g} is more than max_num_epochs, {most:g}"
    hidden = _number(texts, "rnn_num_hidden")
    if hidden is not None and hidden % 2:
        yield "rnn_num_hidden", f"an even number is needed, not {hidden:g}"


def _check_blazingtext(texts: Mapping[str, str]) -> Findings:
    least, most = _number(texts, "min_char"), _number(texts, "max_char")
    if least is not None and most is not None and least > most:
        yield "min_char", f"{least:g} is more than max_char, {most:g}"


def _check_autogluon(texts: Mapping[str, str]) -> Findings:
    levels, folds = _number(texts, "num_stack_levels"), _number(texts, "num_bag_folds")
    if levels and (folds or 0) < 2:
        yield "num_bag_folds", f"num_stack_levels {levels:g} needs at least 2 folds"


_CHECK_BY_ALGORITHM: Mapping[str, Callable[[Mapping[str, str]], Findings]] = {
    "autogluon-tabular": _check_autogluon,
    "blazingtext": _check_blazingtext,
    "image-classification": _check_image_classification,
    "ipinsights": _check_ipinsights,
    "knn": _check_knn,
    "linear-learner": _check_linear_learner,
    "pca": _check_pca,
    "semantic-segmentation": _check_segmentation,
    "seq2seq": _check_seq2seq,
    "xgboost": _check_xgboost,
}
