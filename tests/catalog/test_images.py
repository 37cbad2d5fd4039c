"""The catalog of images, by hand from the reference's sections 1.5, 4.1 and 6.5."""

from __future__ import annotations

import pytest

from smlaunch.catalog import images
from smlaunch.catalog.images import UnknownImage, find_training_image
from tests.tables import table

DLC = "763104351884.dkr.ecr.us-east-1.amazonaws.com"
CLASSIC = "683313688378.dkr.ecr.us-east-1.amazonaws.com"
SMP = "658645717510.dkr.ecr.us-east-1.amazonaws.com"
SPARK = "173754725891.dkr.ecr.us-east-1.amazonaws.com"

DEFAULTS: dict[tuple[str, str], tuple[str, str, str | None]] = {
    ("pytorch", "gpu"): (DLC, "pytorch:2.13.0-cu133-amzn2023-sagemaker", "2027-07-20"),
    ("pytorch", "cpu"): (DLC, "pytorch:2.13.0-cpu-amzn2023-sagemaker", "2027-07-20"),
    ("tensorflow", "gpu"): (
        *(DLC, "tensorflow-training:2.21.0-gpu-py312-cu129-amzn2023-sagemaker", "2027-07-10"),
    ),
    ("tensorflow", "cpu"): (*(DLC, "tensorflow-training:2.21.0-cpu-py312-amzn2023-sagemaker", "2027-07-10"),),
    ("huggingface", "gpu"): (
        DLC,
        "huggingface-pytorch-training:2.9.0-transformers5.3.0-gpu-py312-cu130-ubuntu22.04",
        None,
    ),
    ("smp", "gpu"): (SMP, "smdistributed-modelparallel:2.5.1-gpu-py311-cu124", None),
    ("pytorch-neuronx", "neuron"): (
        DLC,
        "pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04",
        None,
    ),
    ("huggingface-neuronx", "neuron"): (
        DLC,
        "huggingface-pytorch-training-neuronx:2.8.0-transformers4.55.4-neuronx-py310-sdk2.26.0-ubuntu22.04",
        None,
    ),
    ("sklearn", "cpu"): (CLASSIC, "sagemaker-scikit-learn:1.9-0", "2027-07-16"),
    ("xgboost", "cpu"): (CLASSIC, "sagemaker-xgboost:3.2-0", "2027-05-13"),
    ("xgboost", "gpu"): (CLASSIC, "sagemaker-xgboost:1.7-1", None),
    ("spark", "cpu"): (SPARK, "sagemaker-spark-processing:3.5-cpu-py312-v1", None),
}


@table(("family", "processor"), DEFAULTS)
def test_the_default(family: str, processor: str) -> None:
    registry, tag, end_of_patch = DEFAULTS[family, processor]
    image = find_training_image(family, "us-east-1", "aws", processor)
    assert (image.uri, image.end_of_patch) == (f"{registry}/{tag}", end_of_patch)
    assert (image.family, image.processor) == (family, processor)


def test_every_family_but_the_retired_one_has_a_default() -> None:
    assert {family for family, _ in DEFAULTS} == set(images.image_families()) - {"mxnet"}


PYTORCH = {
    "2.6": ("pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", "2026-01-29"),
    "2.7": ("pytorch-training:2.7.1-gpu-py312-cu128-ubuntu22.04-sagemaker", "2026-04-23"),
    "2.8.0": ("pytorch-training:2.8.0-gpu-py312-cu129-ubuntu22.04-sagemaker", "2026-08-06"),
    "2.9": ("pytorch-training:2.9.0-gpu-py312-cu130-ubuntu22.04-sagemaker", "2026-10-15"),
    "2.10": ("pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker", "2027-01-21"),
    "2.11": ("pytorch:2.11.0-cu130-amzn2023-sagemaker", "2027-04-30"),
    "2.12": ("pytorch:2.12.1-cu130-amzn2023-sagemaker", "2027-07-02"),
    "2.13": ("pytorch:2.13.0-cu133-amzn2023-sagemaker", "2027-07-20"),
}


@pytest.mark.parametrize("version", PYTORCH)
def test_published_images_of_pytorch(version: str) -> None:
    image = find_training_image("pytorch", "us-east-1", "aws", "gpu", version)
    assert (image.uri, image.end_of_patch) == (f"{DLC}/{PYTORCH[version][0]}", PYTORCH[version][1])
    assert image.note == ""


NOTED = [
    ("pytorch", "gpu", "2.14", "unconfirmed: the SageMaker SDK alone names it"),
    ("pytorch", "cpu", "1.13.1", "past its end of patch"),
    ("tensorflow", "gpu", "2.18", "past its end of patch"),
    ("pytorch-neuronx", "neuron", "2.8", "the SageMaker SDK cannot resolve it"),
    ("huggingface-neuronx", "neuron", "4.51", "the SageMaker SDK cannot resolve it"),
    ("huggingface", "gpu", "4.56", "not in the published list"),
    ("sklearn", "cpu", "1.9", "the SageMaker SDK makes up another"),
    ("xgboost", "gpu", "3.2", "unconfirmed: it is published as a CPU image"),
    ("spark", "cpu", "3.3", "unconfirmed: its published tags are not known"),
]


@pytest.mark.parametrize(("family", "processor", "version", "note"), NOTED)
def test_what_is_not_sure_is_said(family: str, processor: str, version: str, note: str) -> None:
    assert note in find_training_image(family, "us-east-1", "aws", processor, version).note


def test_what_is_said_of_gpus_is_not_said_of_cpus() -> None:
    assert find_training_image("xgboost", "us-east-1", "aws", "cpu", "3.2").note == ""


@pytest.mark.parametrize(
    ("region", "partition", "host"),
    [
        ("ap-east-1", "aws", "871362719292.dkr.ecr.ap-east-1.amazonaws.com"),
        ("eu-south-1", "aws", "692866216735.dkr.ecr.eu-south-1.amazonaws.com"),
        ("af-south-1", "aws", "626614931356.dkr.ecr.af-south-1.amazonaws.com"),
        ("me-south-1", "aws", "217643126080.dkr.ecr.me-south-1.amazonaws.com"),
        ("cn-north-1", "aws-cn", "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn"),
        ("us-gov-west-1", "aws-us-gov", "442386744353.dkr.ecr.us-gov-west-1.amazonaws.com"),
        ("eu-west-1", "aws", "763104351884.dkr.ecr.eu-west-1.amazonaws.com"),
    ],
)
def test_registries(region: str, partition: str, host: str) -> None:
    assert find_training_image("pytorch", region, partition, "gpu").uri.startswith(host + "/pytorch:")


HERE = ("us-east-1", "aws")
UNKNOWN = [
    (("mxnet", *HERE, "gpu"), "retired", "MXNet is retired"),
    (("chainer", *HERE, "gpu"), "family", "no images of 'chainer' are known"),
    (("sklearn", *HERE, "gpu"), "processor", "there is no GPU image of scikit-learn, only for CPU"),
    (("huggingface", *HERE, "cpu"), "processor", "there is no CPU image of Hugging Face transformers"),
    (("xgboost", *HERE, "gpu", "1.0-1"), "processor", "there is no GPU image of XGBoost 1.0-1"),
    (("pytorch", *HERE, "gpu", "9.9"), "version", "no PyTorch 9.9 image is known; the nearest is 2.13.0"),
    (("pytorch", *HERE, "gpu", "2.99"), "version", "no PyTorch 2.99 image is known; the nearest is 2.13.0"),
    (("pytorch", *HERE, "gpu", "1.4"), "version", "no PyTorch 1.4 image is known; the nearest is 1.9.0"),
    (
        ("tensorflow", *HERE, "gpu", "2.15"),
        "version",
        "no TensorFlow 2.15 image is known; the nearest are 2.14.1 and 2.16.2",
    ),
    (("pytorch", *HERE, "gpu", "2.13.7"), "version", "the PyTorch 2.13 image holds 2.13.0, not 2.13.7"),
    # Python 3.7: the runtime would not run in it.
    (("spark", *HERE, "cpu", "3.1"), "version", "no Spark 3.1 image is known"),
    (
        ("pytorch", "xx-nowhere-1", "aws", "gpu"),
        "region",
        "there is no AWS region 'xx-nowhere-1' in the table of ",
    ),
    (
        ("pytorch", "us-gov-east-1", "aws-us-gov", "gpu", "2.14"),
        "region",
        "no registry with AWS's image of PyTorch 2.14 is known in region us-gov-east-1",
    ),
    (("pytorch", "us-east-1", "aws-moon", "gpu"), "partition", "known in partition aws-moon"),
]


@table(("arguments", "part", "message"), UNKNOWN)
def test_what_is_not_known(arguments: tuple[str, ...], part: str, message: str) -> None:
    with pytest.raises(UnknownImage) as caught:
        find_training_image(*arguments)
    assert caught.value.unknown_part == part
    assert message in str(caught.value)


def test_versions_are_found_by_their_first_numbers() -> None:
    assert images.find_version("pytorch", "2.1") == "2.1.0"  # and not 2.10.0
    assert images.find_version("pytorch", "2") == "2.13.0"  # 2.14 is unconfirmed
    assert images.find_version("xgboost", "1.2") == "1.2-2"
    assert images.find_version("pytorch", "2.1.9") is None


def test_source_and_date_stand_in_the_tables() -> None:
    sources = images.table_sources()
    assert sources["registries"].startswith("sagemaker 3.27.0")
    assert "aws/deep-learning-containers commit e0ecedea" in sources["published"]
    assert "2026-08-21" in sources["published"]
