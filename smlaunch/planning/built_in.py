"""Where one of SageMaker's built-in algorithms does what a script's library does. Pure.

AWS's guide begins with them: no code to adapt, no container to make. Whether the script does nothing else,
reading its imports cannot tell, so it is said and not chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from smlaunch.job import Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import ScriptFacts
from smlaunch.strategies.base import imported

SAME: Mapping[str, str] = {
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
"""What a script imports, and the algorithm by its id in the catalog."""

_MORE = ("torch", "tensorflow", "jax", "mxnet", "pyspark", "ray", "dask")
"""Beside one of these it is not all that the script does."""

_HOSTS = {"several": "also on several hosts", "one": "on one host", "unclear": "on one host"}


def tell_built_in(job: Job, script: ScriptFacts, notes: Notes) -> None:
    """Only where the job leaves the strategy open, and names nothing that the algorithm could not have."""
    if job.strategy is not None or job.entry is None or imported(script.imports, _MORE) is not None:
        return
    names = [name for name in SAME if imported(script.imports, (name,)) is not None]
    if len({SAME[name] for name in names}) != 1:
        return
    # Late: few scripts come here, and the table of algorithms is another file to read.
    from smlaunch.catalog import algorithms

    algorithm = algorithms.find(SAME[names[0]])
    if algorithm is None:
        return
    channels = " or ".join(group[0] for group in algorithm.required_channels)
    notes.because(
        "built-in.would-do",
        f"The script imports {names[0]}: if that is all it does, SageMaker's built-in {algorithm.name} "
        f"({_HOSTS[algorithm.hosts]}, {', '.join(algorithm.files)} in channel {channels}) takes no script, "
        f"by algorithm: {algorithm.id}.",
    )
