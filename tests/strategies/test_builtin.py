"""The 24 built-in algorithms against section 3 of the reference, whose table is copied here by hand."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest

from smlaunch.facts.discovered_facts import InputFacts
from tests.planner.fixtures import local, region
from tests.strategies.requests import channel, documented_request, plan_job, refusals, request_of
from tests.tables import table

PROTOBUF, CSV, JSONL = "application/x-recordio-protobuf", "text/csv", "application/jsonlines"
IMAGES = ("application/x-image", "image/jpeg", "image/png")
CPU, GPU = "ml.m5.xlarge", "ml.g5.xlarge"


class Row(NamedTuple):
    """``channels``: required, then optional ones; ``hosts``: the column Parallelizable, ``several``, ``one``,
    or ``said`` for what is allowed with a warning."""

    account: str
    image: str
    channels: tuple[str, ...]
    optional: tuple[str, ...]
    modes: tuple[str, ...]
    types: tuple[str, ...]
    on: tuple[str, ...]
    hosts: str
    hyperparameters: dict[str, Any]


MODES, FILE = ("File", "Pipe"), ("File",)

ROWS = {
    "blazingtext": Row(
        "811284229777", "blazingtext:1", ("train",), (), MODES, ("text/plain",), (CPU, GPU), "one",
        {"mode": "supervised"},
    ),
    "forecasting-deepar": Row(
        "522234722520", "forecasting-deepar:1", ("train",), ("test",), FILE, (JSONL, "application/x-parquet"),
        (CPU, GPU), "several",
        {"context_length": 7, "prediction_length": 7, "time_freq": "D", "epochs": 20},
    ),
    "factorization-machines": Row(
        "382416733822", "factorization-machines:1", ("train",), ("test",), MODES, (PROTOBUF,),
        (CPU, GPU), "several",
        {"feature_dim": 50, "num_factors": 8, "predictor_type": "regressor"},
    ),
    "image-classification": Row(
        "811284229777", "image-classification:1", ("train", "validation"),
        ("train_lst", "validation_lst", "model"), MODES, ("application/x-recordio", *IMAGES), (GPU,),
        "several",
        {"num_classes": 10, "num_training_samples": 1000},
    ),
    "ipinsights": Row(
        "382416733822", "ipinsights:1", ("train",), ("validation",), FILE, (CSV,), (CPU, GPU), "several",
        {"num_entity_vectors": 100, "vector_dim": 16},
    ),
    "kmeans": Row(
        "382416733822", "kmeans:1", ("train",), ("test",), MODES, (PROTOBUF, CSV), (CPU, GPU), "said",
        {"k": 10, "feature_dim": 784},
    ),
    "knn": Row(
        "382416733822", "knn:1", ("train",), ("test",), MODES, (PROTOBUF, CSV), (CPU, GPU), "several",
        {"feature_dim": 50, "k": 5, "predictor_type": "classifier", "sample_size": 1000},
    ),
    "lda": Row(
        "766337827248", "lda:1", ("train",), ("test",), MODES, (PROTOBUF, CSV), (CPU,), "one",
        {"num_topics": 5, "feature_dim": 50, "mini_batch_size": 100},
    ),
    "linear-learner": Row(
        "382416733822", "linear-learner:1", ("train",), ("validation", "test"), MODES, (PROTOBUF, CSV),
        (CPU, GPU), "several", {"predictor_type": "regressor"},
    ),
    "ntm": Row(
        "382416733822", "ntm:1", ("train",), ("validation", "test"), MODES, (PROTOBUF, CSV),
        (CPU, GPU), "several",
        {"feature_dim": 50, "num_topics": 5},
    ),
    "object2vec": Row(
        "382416733822", "object2vec:1", ("train",), ("validation", "test"), FILE, (JSONL,), (CPU, GPU), "one",
        {"enc0_max_seq_len": 20, "enc0_vocab_size": 1000},
    ),
    "object-detection": Row(
        "811284229777", "object-detection:1", ("train", "validation"),
        ("train_annotation", "validation_annotation", "model"), MODES, ("application/x-recordio", *IMAGES),
        (GPU,), "several", {"num_classes": 10, "num_training_samples": 1000},
    ),
    "pca": Row(
        "382416733822", "pca:1", ("train",), ("test",), MODES, (PROTOBUF, CSV), (CPU, GPU), "several",
        {"feature_dim": 50, "mini_batch_size": 100, "num_components": 3},
    ),
    "randomcutforest": Row(
        "382416733822", "randomcutforest:1", ("train",), ("test",), MODES, (PROTOBUF, CSV),
        (CPU, GPU), "several",
        {"feature_dim": 50},
    ),
    "semantic-segmentation": Row(
        "811284229777", "semantic-segmentation:1",
        ("train", "validation", "train_annotation", "validation_annotation"), ("label_map", "model"), MODES,
        IMAGES, (GPU,), "one", {"num_classes": 10, "num_training_samples": 1000},
    ),
    "seq2seq": Row(
        "811284229777", "seq2seq:1", ("train", "validation", "vocab"), (), FILE, (PROTOBUF,), (GPU,), "one",
        {},
    ),
    "xgboost": Row(
        "683313688378", "sagemaker-xgboost:3.2-0", ("train",), ("validation",), MODES,
        (CSV, "text/libsvm", "application/x-parquet"), (CPU,), "several", {"num_round": 100},
    ),
}  # fmt: skip
"""XGBoost on GPUs is of its own: see below. RCF runs on GPUs too, and is warned of it."""

HOSTED = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
JUMPSTART = {
    "autogluon-tabular": Row("", HOSTED, ("training",), ("validation",), FILE, (CSV,), (CPU, GPU), "one", {}),
    "catboost": Row("", HOSTED, ("training",), ("validation",), FILE, (CSV,), (CPU,), "one", {}),
    "image-classification-tensorflow": Row(
        "", HOSTED, ("training",), ("validation",), FILE, IMAGES, (CPU, GPU), "one", {}
    ),
    "lightgbm": Row("", HOSTED, ("train",), ("validation",), FILE, (CSV,), (CPU,), "several", {}),
    "object-detection-tensorflow": Row(
        "", HOSTED, ("training", "validation"), (), FILE, IMAGES, (GPU,), "one", {}
    ),
    "tabtransformer": Row("", HOSTED, ("training",), ("validation",), FILE, (CSV,), (CPU, GPU), "one", {}),
    "text-classification-tensorflow": Row(
        "", HOSTED, ("training", "validation"), (), FILE, (CSV,), (CPU, GPU), "one", {}
    ),
}
"""Their images are in no table: the job names one."""

ALL_ROWS = {**ROWS, **JUMPSTART}
DATA = ("train", "training", "validation", "test")


def job(name: str, on: str | None = None, hosts: int = 1, **fields: Any) -> dict[str, Any]:
    """Returns a valid job with every required channel and hyperparameter, and these ``fields``."""
    row = ALL_ROWS[name]
    inputs: dict[str, Any] = {}
    for required in row.channels:
        inputs[required] = {"uri": f"s3://b/{required}/"}
        if required in DATA:
            inputs[required]["content_type"] = row.types[0]
    if name == "randomcutforest":
        inputs["train"]["split"] = "key"
    mapping: dict[str, Any] = {
        "algorithm": name,
        "inputs": inputs,
        "hyperparameters": dict(row.hyperparameters),
        "compute": {"hosts": hosts, "instance_type": on or row.on[0]},
    }
    if name in JUMPSTART:
        mapping["image"] = row.image
    return {**mapping, **fields}


def expected(name: str, on: str, hosts: int) -> dict[str, Any]:
    row = ALL_ROWS[name]
    image = row.image if name in JUMPSTART else f"{row.account}.dkr.ecr.us-east-1.amazonaws.com/{row.image}"
    channels = []
    for required in row.channels:
        kind = row.types[0] if required in DATA else None
        split_fields = {"S3DataDistributionType": "ShardedByS3Key"} if (name, required) == FOREST else {}
        channels.append(channel(required, f"s3://b/{required}/", kind, **split_fields))
    texts = {key: str(value) for key, value in row.hyperparameters.items()}
    return documented_request(image, on, hosts, hyperparameters=texts, channels=channels, script=False)


FOREST = ("randomcutforest", "train")


def test_there_are_24() -> None:
    assert len(ALL_ROWS) == 24


@table("name", ALL_ROWS)
def test_the_request(name: str) -> None:
    for on in ALL_ROWS[name].on:
        assert request_of(plan_job(job(name, on))) == expected(name, on, 1)


@table("name", ALL_ROWS)
def test_several_hosts(name: str) -> None:
    row = ALL_ROWS[name]
    mapping = job(name, row.on[0], hosts=2)
    if row.hosts == "one":
        (message,) = refusals(mapping)
        assert message.startswith(f"compute.hosts: {name} is not parallelizable over hosts: it runs on one")
        assert "not on 2" in message
        return
    plan = plan_job(mapping)
    assert request_of(plan) == expected(name, row.on[0], 2)
    if row.hosts == "said":
        assert any(
            "the table of all algorithms says that it is not parallelizable" in w for w in plan.warnings
        )


@table("name", [name for name, row in ALL_ROWS.items() if row.hosts == "one" and GPU in row.on])
def test_where_one_host_uses_all_its_gpus(name: str) -> None:
    (message,) = refusals(job(name, GPU, hosts=2))
    assert ("where it uses all GPUs" in message) == (
        name in ("object2vec", "seq2seq") or name.endswith("-tensorflow")
    )


@table("name", ALL_ROWS)
def test_processors(name: str) -> None:
    row = ALL_ROWS[name]
    if row.on == (GPU,):
        (message,) = refusals(job(name, CPU))
        assert message.startswith(
            f"compute.instance_type: {name} runs on GPUs, not on the CPUs of ml.m5.xlarge"
        )
    elif row.on == (CPU,) and name != "xgboost":
        (message,) = refusals(job(name, GPU))
        assert message.startswith(
            f"compute.instance_type: {name} runs on CPUs, not on the GPUs of ml.g5.xlarge"
        )
    (message,) = refusals(job(name, "ml.trn1.32xlarge"))
    assert message.startswith(f"compute.instance_type: {name} does not run on NeuronCores")


@table(
    ("on", "is_warned"),
    [
        *((kind, False) for kind in ("ml.p3.2xlarge", "ml.g4dn.xlarge", "ml.g5.2xlarge")),
        *((kind, True) for kind in ("ml.p4d.24xlarge", "ml.p5.48xlarge", "ml.g6.xlarge")),
    ],
)
def test_gpu_families(on: str, is_warned: bool) -> None:
    message = f"That built-in algorithms run on {on} is unconfirmed"
    assert any(message in warning for warning in plan_job(job("linear-learner", on)).warnings) == is_warned


@pytest.mark.parametrize("name", ["kmeans", "knn", "blazingtext", "semantic-segmentation"])
def test_those_that_use_one_gpu_of_a_host(name: str) -> None:
    message = "uses one GPU of a host, and ml.g5.12xlarge has 4"
    assert any(message in warning for warning in plan_job(job(name, "ml.g5.12xlarge")).warnings)
    assert not any(message in warning for warning in plan_job(job("ntm", "ml.g5.12xlarge")).warnings)


def test_a_forest_gains_nothing_from_gpus() -> None:
    warnings = plan_job(job("randomcutforest", GPU)).warnings
    assert any("randomcutforest gains nothing from the GPUs" in warning for warning in warnings)


# ---- channels and hyperparameters ------------------------------------------------------------------------


@table("name", ALL_ROWS)
def test_channels(name: str) -> None:
    row = ALL_ROWS[name]
    for missing in row.channels:
        mapping = job(name)
        del mapping["inputs"][missing]
        assert any(
            message.startswith(f"inputs: {name} needs a channel ") and f"'{missing}'" in message
            for message in refusals(mapping)
        )
    mapping = job(name)
    mapping["inputs"]["trian"] = "s3://b/x/"
    (message,) = refusals(mapping)
    assert message.startswith(f"inputs.trian: {name} has no channel of that name")
    for optional in row.optional:
        mapping = job(name)
        mapping["inputs"][optional] = "s3://b/x/"
        names = [
            channel_fields["ChannelName"]
            for channel_fields in request_of(plan_job(mapping))["InputDataConfig"]
        ]
        assert names == [*row.channels, optional]


@table("name", [name for name, row in ALL_ROWS.items() if row.hyperparameters])
def test_required_hyperparameters(name: str) -> None:
    assert refusals({**job(name), "hyperparameters": {}}) == [
        f"hyperparameters.{key}: it is missing; {name} does not start without it"
        for key in ALL_ROWS[name].hyperparameters
    ]


@table("name", ALL_ROWS)
def test_input_modes(name: str) -> None:
    row = ALL_ROWS[name]
    for mode in ("File", "Pipe", "FastFile"):
        mapping = job(name)
        mapping["inputs"][row.channels[0]]["mode"] = mode
        if mode in row.modes:
            channel_request = request_of(plan_job(mapping))["InputDataConfig"][0]
            assert channel_request["InputMode"] == mode
        else:
            (message,) = refusals(mapping)
            modes = " or ".join(row.modes)
            assert message == f"inputs.{row.channels[0]}.mode: {name} reads in {modes} mode, not in {mode}"


SHORT_TYPES = ("csv", "libsvm", "recordio-protobuf")
EVERY_TYPE = (
    *(PROTOBUF, CSV, JSONL, "text/libsvm", "application/x-parquet", "application/x-recordio"),
    *IMAGES,
    *SHORT_TYPES,
)
OTHER_CONTENT_TYPES = {
    ("blazingtext", JSONL),  # augmented manifests, by the guide's table of content types
    ("semantic-segmentation", "application/x-recordio"),  # augmented manifests, in Pipe mode
    ("xgboost", PROTOBUF),  # 1.x
    *(("xgboost", kind) for kind in SHORT_TYPES),  # its container's data_utils.py
}
"""What an algorithm reads beside the table's file types."""


@table(("name", "kind"), itertools.product(ALL_ROWS, EVERY_TYPE))
def test_content_types(name: str, kind: str) -> None:
    row = ALL_ROWS[name]
    mapping = job(name)
    mapping["inputs"][row.channels[0]]["content_type"] = kind
    if kind in row.types or (name, kind) in OTHER_CONTENT_TYPES:
        assert request_of(plan_job(mapping))["InputDataConfig"][0]["ContentType"] == kind
    else:
        (message,) = refusals(mapping)
        assert message.startswith(
            f"inputs.{row.channels[0]}.content_type: {name} does not read {kind!r}; it reads "
        )


def test_a_content_type_with_parameters_and_one_that_is_not_stated() -> None:
    mapping = job("kmeans")
    mapping["inputs"]["train"]["content_type"] = "text/csv; label_size=0"
    assert plan_job(mapping).warnings == ()
    del mapping["inputs"]["train"]["content_type"]
    (message,) = plan_job(mapping).warnings
    assert message.startswith("inputs.train.content_type is not stated: kmeans reads recordIO-protobuf, CSV")


# ---- XGBoost ---------------------------------------------------------------------------------------------

XGBOOST_ON_CPUS = {
    None: "3.2-0",
    "0.90-1": "0.90-1-cpu-py3",
    "0.90-2": "0.90-2-cpu-py3",
    "1.0-1": "1.0-1-cpu-py3",
    "1.2-1": "1.2-1",
    "1.2-2": "1.2-2",
    "1.3-1": "1.3-1",
    "1.5-1": "1.5-1",
    "1.7-1": "1.7-1",
    "1.7": "1.7-1",
    "3.0-5": "3.0-5",
    "3.2-0": "3.2-0",
}
WITHOUT_GPUS = ("0.90-1", "0.90-2", "1.0-1")
DASK: dict[str, Any] = {"num_round": 100, "use_dask_gpu_training": "true", "tree_method": "gpu_hist"}


def xgboost(on: str, version: str | None = None, hosts: int = 1, **fields: Any) -> dict[str, Any]:
    mapping = job("xgboost", on, hosts, **fields)
    return mapping if version is None else {**mapping, "framework_version": version}


@table("version", XGBOOST_ON_CPUS)
def test_xgboost_on_cpus(version: str | None) -> None:
    request = request_of(plan_job(xgboost(CPU, version)))
    image = f"683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-xgboost:{XGBOOST_ON_CPUS[version]}"
    assert request["AlgorithmSpecification"] == {"TrainingImage": image, "TrainingInputMode": "File"}


@table("version", XGBOOST_ON_CPUS)
def test_xgboost_on_a_gpu(version: str | None) -> None:
    mapping = xgboost(GPU, version, hyperparameters={"num_round": 100, "tree_method": "gpu_hist"})
    if version in WITHOUT_GPUS:
        (message,) = refusals(mapping)
        assert message.startswith(f"framework_version: there is no GPU image of XGBoost {version}")
        return
    plan = plan_job(mapping)
    tag = "1.7-1" if version is None else XGBOOST_ON_CPUS[version]
    assert plan.image.endswith(f"/sagemaker-xgboost:{tag}")
    assert any("unconfirmed" in warning for warning in plan.warnings) == tag.startswith("3.")


@pytest.mark.parametrize("version", ["1.2-1", "1.2-2", "1.3-1"])
def test_dask_is_not_in_old_versions(version: str) -> None:
    (message,) = refusals(xgboost(GPU, version, hyperparameters=DASK))
    assert message.startswith(
        f"hyperparameters.use_dask_gpu_training: XGBoost {version} does not support it; use "
    )


@table(("version", "hosts", "is_warned"), [
    ("1.5-1", 1, False), ("1.5-1", 2, True), ("1.7-1", 1, False), ("1.7-1", 2, False), (None, 2, False),
])  # fmt: skip
def test_dask_on_all_gpus(version: str | None, hosts: int, is_warned: bool) -> None:
    plan = plan_job(xgboost("ml.g5.12xlarge", version, hosts, hyperparameters=DASK))
    request = request_of(plan)
    assert request["HyperParameters"] == {key: str(value) for key, value in DASK.items()}
    assert request["ResourceConfig"]["InstanceCount"] == hosts
    assert any("sources differ about" in warning for warning in plan.warnings) == is_warned
    assert not any("one of the 4 GPUs" in warning for warning in plan.warnings)


def test_what_dask_needs() -> None:
    mapping = xgboost(CPU, "1.7-1", hyperparameters={"num_round": 100, "use_dask_gpu_training": True})
    mapping["inputs"]["train"] = {
        "uri": "s3://b/train/",
        "split": "key",
        "mode": "Pipe",
        "content_type": "text/libsvm",
    }
    assert [message.partition("; ")[0] for message in refusals(mapping)] == [
        "hyperparameters.use_dask_gpu_training: it trains on GPUs, and ml.m5.xlarge has none",
        "hyperparameters.tree_method: use_dask_gpu_training needs gpu_hist",
        "inputs.train.split: use_dask_gpu_training distributes the data itself, and every host needs all "
        "of it",
        "inputs.train.mode: use_dask_gpu_training reads in File mode",
        "inputs.train.content_type: use_dask_gpu_training reads text/csv or application/x-parquet",
    ]


def test_gpus_without_dask() -> None:
    warnings = "\n".join(plan_job(xgboost("ml.g5.12xlarge", "1.7-1")).warnings)
    assert "XGBoost uses one of the 4 GPUs of a host" in warnings
    assert "only with tree_method: gpu_hist" in warnings


def test_xgboost_on_several_hosts_wants_its_data_split() -> None:
    mapping = xgboost(CPU, hosts=2)
    assert any("all 2 hosts train on the same data" in warning for warning in plan_job(mapping).warnings)
    mapping["inputs"]["train"]["split"] = "key"
    assert not any("same data" in warning for warning in plan_job(mapping).warnings)


def test_an_unknown_version() -> None:
    (message,) = refusals(xgboost(CPU, "2.0"))
    assert message.startswith("framework_version: no XGBoost 2.0 image is known")
    assert "pip install '.[sagemaker]'" in message
    (message,) = refusals(job("kmeans", framework_version="2"))
    assert message.startswith("framework_version: K-Means has no version 2; it has 1")


# ---- others of their own ---------------------------------------------------------------------------------


def test_a_forest_wants_train_sharded_and_test_whole() -> None:
    mapping = job("randomcutforest")
    mapping["inputs"]["train"]["split"] = None
    mapping["inputs"]["test"] = {"uri": "s3://b/test/", "split": "key", "content_type": CSV}
    assert [message.partition(";")[0] for message in refusals(mapping)] == [
        "inputs.train.split: randomcutforest reads train only as ShardedByS3Key",
        "inputs.test.split: randomcutforest needs all of test on every host",
    ]


@pytest.mark.parametrize("name", ["image-classification", "object-detection"])
def test_recordio_in_pipe_mode_goes_to_every_host_whole(name: str) -> None:
    mapping = job(name, hosts=2)
    mapping["inputs"]["train"] |= {"mode": "Pipe", "split": "key"}
    (message,) = refusals(mapping)
    assert message.startswith(
        f"inputs.train.split: {name} reads all recordIO data in Pipe mode on every host"
    )
    warnings = plan_job(job(name, hosts=2)).warnings
    assert any("wants hyperparameters.kv_store" in warning for warning in warnings)


def test_blazingtext_batch_skipgram_is_the_exception() -> None:
    hyperparameters = {"mode": "batch_skipgram"}
    plan = plan_job(job("blazingtext", CPU, hosts=3, hyperparameters=hyperparameters))
    assert request_of(plan)["ResourceConfig"]["InstanceCount"] == 3
    assert any("the table of all algorithms does not (unconfirmed)" in warning for warning in plan.warnings)
    (message,) = refusals(job("blazingtext", GPU, hosts=3, hyperparameters=hyperparameters))
    assert message.startswith("compute.instance_type: mode batch_skipgram runs on CPUs")


def test_lightgbm_on_several_hosts_reads_train() -> None:
    inputs = {"training": {"uri": "s3://b/training/", "content_type": CSV}}
    plan_job(job("lightgbm", inputs=inputs))
    (message,) = refusals(job("lightgbm", hosts=2, inputs=inputs))
    assert message.startswith("inputs.training: lightgbm on several hosts reads a channel train")


def test_what_is_said_of_some() -> None:
    assert any(
        "gains from several hosts only with large" in w
        for w in plan_job(job("forecasting-deepar", hosts=2)).warnings
    )
    assert any("leaves no model behind when it is stopped" in w for w in plan_job(job("ntm")).warnings)
    on_gpus = plan_job(job("ipinsights", GPU, hosts=2)).warnings
    assert any("with GPUs those of one host" in warning for warning in on_gpus)
    assert any("recommends split: key" in w for w in plan_job(job("linear-learner", hosts=2)).warnings)


# ---- images, spot, names ---------------------------------------------------------------------------------


@table("name", JUMPSTART)
def test_jumpstart_hosts_seven(name: str) -> None:
    mapping = job(name)
    del mapping["image"]
    (message,) = refusals(mapping)
    assert message.startswith("image: JumpStart hosts ")
    assert "pip install '.[sagemaker]'" in message
    assert message.endswith("or name an image")
    assert any("a separate script of JumpStart" in warning for warning in plan_job(job(name)).warnings)


@pytest.mark.parametrize(
    ("name", "region_and_partition", "host"),
    [
        ("xgboost", ("eu-west-1", "aws"), "141502667606.dkr.ecr.eu-west-1.amazonaws.com"),
        ("xgboost", ("cn-north-1", "aws-cn"), "450853457545.dkr.ecr.cn-north-1.amazonaws.com.cn"),
        ("kmeans", ("eu-west-1", "aws"), "438346466558.dkr.ecr.eu-west-1.amazonaws.com"),
        ("pca", ("us-gov-west-1", "aws-us-gov"), "226302683700.dkr.ecr.us-gov-west-1.amazonaws.com"),
    ],
)
def test_registries_of_other_regions(name: str, region_and_partition: tuple[str, str], host: str) -> None:
    plan = plan_job(job(name), region(region=region_and_partition[0], partition=region_and_partition[1]))
    assert plan.image.startswith(host + "/")


def test_regions_without_an_image() -> None:
    (message,) = refusals(job("lda"), region="ap-east-1")
    assert message.startswith("image: no registry with AWS's image of LDA is known in region ap-east-1")
    (message,) = refusals(job("kmeans"), region="xx-nowhere-1")
    assert message.startswith("image: there is no AWS region 'xx-nowhere-1' in the table of ")


CHECKPOINTING = ("image-classification", "object-detection", "semantic-segmentation", "xgboost")


@table("name", ALL_ROWS)
def test_spot(name: str) -> None:
    """MaxWait is at most an hour where an algorithm keeps no checkpoints."""
    mapping = job(name, limits={"max_runtime": "40m"})
    mapping["compute"]["spot"] = True
    stopping = request_of(plan_job(mapping))["StoppingCondition"]
    wait = 4800 if name in CHECKPOINTING else 3600
    assert stopping == {"MaxRuntimeInSeconds": 2400, "MaxWaitTimeInSeconds": wait}
    mapping |= {"limits": {"max_runtime": "2h"}, "checkpoints": "s3://b/kept/"}
    if name in CHECKPOINTING:
        request = request_of(plan_job(mapping))
        assert request["CheckpointConfig"] == {"S3Uri": "s3://b/kept/", "LocalPath": "/opt/ml/checkpoints"}
    else:
        (message,) = refusals(mapping)
        assert message.startswith(
            f"limits.max_runtime: {name} saves no checkpoints: on spot it may take an hour"
        )


def test_checkpoints_of_an_algorithm_that_keeps_none() -> None:
    warnings = plan_job(job("pca", checkpoints="s3://b/kept/")).warnings
    assert any("checkpoints has no effect: pca saves none" in warning for warning in warnings)


@table(
    ("spelling", "image"),
    [("K-Means", "kmeans:1"), ("KMeans", "kmeans:1"), ("RandomCutForest", "randomcutforest:1")]
    + [("DeepAR Forecasting", "forecasting-deepar:1"), ("deepar", "forecasting-deepar:1")],
)
def test_names_as_people_write_them(spelling: str, image: str) -> None:
    row = ROWS[image.partition(":")[0]]
    name = image.partition(":")[0]
    assert (
        plan_job({**job(name), "algorithm": spelling}).image
        == f"{row.account}.dkr.ecr.us-east-1.amazonaws.com/{image}"
    )


def test_names_that_are_none() -> None:
    (message,) = refusals({"algorithm": "xgbost", "inputs": {"train": "s3://b/train/"}})
    assert message == "algorithm: there is no built-in algorithm 'xgbost', did you mean 'xgboost'?"
    assert refusals({"strategy": "builtin"}) == [
        "algorithm: builtin runs one of SageMaker's algorithms; name it"
    ]
    (message,) = refusals({**job("kmeans"), "strategy": "ddp"})
    assert message == "strategy: a built-in algorithm needs strategy: builtin, not ddp; leave it out"
    (message,) = refusals({**job("kmeans"), "compute": {"processes_per_host": 2, "instance_type": CPU}})
    assert message.startswith("compute.processes_per_host: it applies to scripts")


def test_on_the_local_endpoint_it_is_told_that_images_have_to_be_run() -> None:
    input_facts = InputFacts("s3://b/train/", "s3", objects=3, bytes=30)
    plan = plan_job(job("kmeans"), local(inputs={"train": input_facts}))
    assert any("executor processes starts this machine's own `train`" in w for w in plan.warnings)
