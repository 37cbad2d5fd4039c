"""Suggest a built-in algorithm of SageMaker that does what the script's library does. Pure.

A built-in algorithm needs no code and no container. Imports alone do not show whether the script does
anything else, so the plan suggests the algorithm and does not choose it.
"""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import ScriptFacts
from smlaunch.strategies.base import first_imported

ALGORITHM_BY_LIBRARY: Mapping[str, str] = {
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
    "catboost": "catboost",
    "autogluon.tabular": "autogluon-tabular",
    "gluonts": "forecasting-deepar",
    "gensim.models.Word2Vec": "blazingtext",
    "fasttext": "blazingtext",
    "sklearn.cluster.KMeans": "kmeans",
    "sklearn.decomposition.PCA": "pca",
    "sklearn.decomposition.LatentDirichletAllocation": "lda",
    "sklearn.neighbors.KNeighborsClassifier": "knn",
    "sklearn.neighbors.KNeighborsRegressor": "knn",
    "sklearn.linear_model.LogisticRegression": "linear-learner",
    "sklearn.linear_model.LinearRegression": "linear-learner",
}
"""Id of the algorithm in the catalog, by what a script imports."""

_BROADER_LIBRARIES = ("torch", "tensorflow", "jax", "mxnet", "pyspark", "ray", "dask")
"""A script that imports one of these does more than a built-in algorithm can."""

_HOSTS_TEXT = {"several": "also on several hosts", "one": "on one host", "unclear": "on one host"}


def suggest_built_in(job: Job, script: ScriptFacts, diagnostics: Diagnostics) -> None:
    """Add the suggestion if the job leaves the strategy open."""
    if (
        job.strategy is not None
        or job.entry is None
        or first_imported(script.imports, _BROADER_LIBRARIES) is not None
    ):
        return
    libraries = [name for name in ALGORITHM_BY_LIBRARY if first_imported(script.imports, (name,)) is not None]
    if len({ALGORITHM_BY_LIBRARY[name] for name in libraries}) != 1:
        return
    # Imported late: few scripts get here, and the table of algorithms is another file to read.
    from smlaunch.catalog import algorithms

    algorithm = algorithms.find_algorithm(ALGORITHM_BY_LIBRARY[libraries[0]])
    if algorithm is None:
        return
    channels = " or ".join(group[0] for group in algorithm.required_channels)
    diagnostics.add_reason(
        "built-in.would-do",
        f"The script imports {libraries[0]}: if that is all it does, SageMaker's built-in {algorithm.name} "
        f"({_HOSTS_TEXT[algorithm.hosts]}, {', '.join(algorithm.files)} in channel {channels}) takes no "
        f"script, by algorithm: {algorithm.id}.",
    )
