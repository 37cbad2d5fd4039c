"""Which strategy a script's imports speak for, where it has several."""

from __future__ import annotations

import pytest

from smlaunch.planning.libraries import spoken_for
from smlaunch.strategies import load
from smlaunch.strategy_names import BUILT_IN, GUESSED

SPOKEN = [
    ("torch.distributed", "ddp", "torch.distributed"),
    ("torch torch.distributed.init_process_group", "ddp", "torch.distributed"),
    ("lightning.pytorch", "ddp", "lightning"),
    ("pytorch_lightning", "ddp", "pytorch_lightning"),
    ("transformers.Trainer torch", "huggingface", "transformers"),
    ("accelerate torch.distributed", "huggingface", "accelerate"),
    ("deepspeed torch.distributed transformers", "deepspeed", "deepspeed"),
    ("mpi4py.MPI numpy", "mpi", "mpi4py"),
    ("pyspark.sql pandas", "spark", "pyspark"),
    ("pyspark.sql xgboost sklearn.metrics", "spark", "pyspark"),
    ("torch.sagemaker torch.distributed", "smp", "torch.sagemaker"),
    ("ray.train torch.distributed", "ray", "ray"),
    ("smdistributed.dataparallel.torch.torch_smddp torch.distributed", "smddp", "smdistributed.dataparallel"),
    ("torch_xla.core torch.distributed", "neuron", "torch_xla"),
    ("tensorflow.distribute sklearn.metrics", "tensorflow", "tensorflow"),
    ("xgboost sklearn.metrics", "xgboost", "xgboost"),
    ("sklearn.ensemble numpy", "sklearn", "sklearn"),
    ("sklearn.metrics torch.distributed", "ddp", "torch.distributed"),
]
NOT_SPOKEN = [
    "torch sklearn.metrics",  # sklearn's image has no torch
    "lightgbm sklearn.model_selection",
    "lightningbolt",
    "transformers_of_mine",
    "torch",
    "numpy json",
    "",
]


@pytest.mark.parametrize(("imports", "strategy", "library"), SPOKEN)
def test_the_library_that_starts_the_others_counts(imports: str, strategy: str, library: str) -> None:
    found = spoken_for(frozenset(imports.split()))
    assert found is not None
    assert (found.strategy, found.library) == (strategy, library)


@pytest.mark.parametrize("imports", NOT_SPOKEN)
def test_nothing_is_guessed_from_others(imports: str) -> None:
    assert spoken_for(frozenset(imports.split())) is None


def test_every_strategy_that_names_libraries_has_its_place() -> None:
    assert {name for name in BUILT_IN if load(name).libraries} == set(GUESSED)
