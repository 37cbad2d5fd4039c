"""The catalog is what its tool makes, and the official package answers for what it does not know."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3
import pytest

from smlaunch.catalog.algorithms import find_algorithm_image, known_algorithms
from smlaunch.catalog.images import Image, UnknownImage, find_training_image
from smlaunch.local.endpoint import Endpoint
from tests.conftest import ROOT
from tests.real.conftest import program

CATALOG = ROOT / "smlaunch" / "catalog"


def test_made_anew_it_is_the_same(tmp_path: Path) -> None:
    python = program("sdk3", "python3")
    subprocess.run([python, "tools/generate_images.py", str(tmp_path)], cwd=ROOT, check=True)
    files_written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert sorted(files_written) == ["algorithms.json", "images.json", "registries.json"]
    for name, text in files_written.items():
        assert text == (CATALOG / name).read_text(), f"{name}: run tools/generate_images.py"


SURVEY = """
import json, sys
from smlaunch.job.model import Job
from smlaunch.discovery.sdk_images import resolve_image
found = [resolve_image(Job.from_mapping(job), "us-east-1", True) for job in json.loads(sys.argv[1])]
print(json.dumps([None if one is None else [one.uri, one.problem] for one in found]))
"""

ANSWER = """
import json, sys
from smlaunch.discovery.sdk_images import ImageQuery, _answer_query
print(json.dumps([_answer_query(ImageQuery(**one)) for one in json.loads(sys.argv[1])]))
"""


def run_in_sdk3(code: str, questions: Any, variables: Mapping[str, str] = {}) -> list[Any]:
    """Returns what a program prints in the environment with the extra ``sagemaker``, without credentials."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": "/nonexistent",
        **variables,
    }
    command = [program("sdk3", "python3"), "-c", code, json.dumps(questions)]
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    answers: list[Any] = json.loads(result.stdout.splitlines()[-1])
    return answers


def test_what_survey_learns() -> None:
    script = {"entry": "train.py"}
    jumpstart = {"algorithm": "lightgbm", "options": {"model": "lightgbm-classification-model"}}
    known_version, named_image, unknown_version, old_version, neuron, without_model, with_model = run_in_sdk3(
        SURVEY,
        [
            {**script, "framework_version": "2.13"},
            {"algorithm": "lightgbm", "image": "mine:1"},
            {**script, "framework_version": "9.9"},
            {**script, "framework_version": "1.2.0"},
            {**script, "strategy": "neuron", "framework_version": "2.1"},
            {"algorithm": "lightgbm"},
            jumpstart,
        ],
    )
    assert known_version is named_image is None  # there is nothing to ask
    source = "sagemaker 3.27.0 says: "
    assert unknown_version == [None, source + "ValueError: Unsupported pytorch version: 9.9"]
    assert old_version[1].endswith(
        "pytorch-training:1.2.0-cpu-py3, whose Python is older than the 3.8 that the runtime needs"
    )
    assert neuron == [None, "the sagemaker package resolves no Neuron image"]
    assert "options.model" in without_model[1]
    # It requests JumpStart's table from the region, and has no credentials for that.
    assert with_model[0] is None
    assert with_model[1].startswith(source)


def test_jumpstarts_table_is_read_where_the_region_has_it(tmp_path: Path) -> None:
    """The package reads JumpStart's bucket itself, here in the endpoint's S3: a table of one model."""
    model, image = (
        "catboost-regression-model",
        "763104351884.dkr.ecr.us-east-1.amazonaws.com/tabular-training:1.0",
    )
    on_m5 = {"regional_properties": {"image_uri": "$alias"}}
    specification = {
        "model_id": model,
        "url": "",
        "version": "2.1.0",
        "min_sdk_version": "2.0.0",
        "training_supported": True,
        "training_artifact_key": "artifact.tar.gz",
        "training_script_key": "script.tar.gz",
        "training_instance_type_variants": {
            "regional_aliases": {"us-east-1": {"alias": image}},
            "variants": {"m5": on_m5},
        },
    }
    manifest = [
        {"model_id": model, "version": "2.1.0", "min_version": "2.0.0", "spec_key": "specification.json"}
    ]
    with Endpoint(tmp_path, isolation="plain") as info:
        keys = {"aws_access_key_id": info.access_key, "aws_secret_access_key": info.secret_key}
        s3 = boto3.client("s3", endpoint_url=info.url, region_name=info.region, **keys)
        bucket = "jumpstart-cache-prod-us-east-1"
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="models_manifest.json", Body=json.dumps(manifest).encode())
        s3.put_object(Bucket=bucket, Key="specification.json", Body=json.dumps(specification).encode())
        on = {"region": "us-east-1", "instance_type": "ml.m5.xlarge"}
        questions = [{"framework": "catboost", "model": name, **on} for name in (model, "no-such-model")]
        known_model, unknown_model = run_in_sdk3(ANSWER, questions, info.environment())
    assert known_model == {
        "uri": image,
        "script": f"s3://{bucket}/script.tar.gz",
        "model": f"s3://{bucket}/artifact.tar.gz",
    }
    assert "no-such-model" in unknown_model["problem"]


def test_the_package_says_the_same_of_what_both_know() -> None:
    """The long tags of published images differ: only the catalog has them."""
    on = {"region": "us-east-1", "instance_type": "ml.p4d.24xlarge"}
    questions = [
        {"framework": "pytorch", "version": "2.14", **on},
        {"framework": "huggingface", "version": "5.3.0", **on},
        {"framework": "smp", "version": "2.5.1", **on},
        {"framework": "xgboost", "version": "1.7-1", **on},
        {"framework": "spark", "version": "3.5", "region": "eu-west-1", "instance_type": "ml.m5.xlarge"},
        {"framework": "kmeans", "region": "eu-west-1", "instance_type": "ml.m5.xlarge"},
        # For Trainium the package answers any version with PyTorch 1.11.
        {"framework": "pytorch", "version": "1.12.1", **on, "instance_type": "ml.trn1.32xlarge"},
    ]
    *known_images, trainium = run_in_sdk3(ANSWER, questions)
    kmeans = known_algorithms()["kmeans"]
    assert [answer.get("uri") for answer in known_images] == [
        find_training_image("pytorch", "us-east-1", "aws", "gpu", "2.14").uri,
        find_training_image("huggingface", "us-east-1", "aws", "gpu", "5.3.0").uri,
        find_training_image("smp", "us-east-1", "aws", "gpu", "2.5.1").uri,
        find_training_image("xgboost", "us-east-1", "aws", "gpu", "1.7-1").uri,
        find_training_image("spark", "eu-west-1", "aws", "cpu", "3.5").uri,
        find_algorithm_image(kmeans, "eu-west-1", "aws", "cpu").uri,
    ]
    assert "pytorch-training-neuron:1.11.0-neuron-py38" in trainium["problem"]
    assert trainium["problem"].endswith("which is another version")


FRAMEWORKS = ("pytorch", "tensorflow", "huggingface", "sklearn", "spark", "mxnet")
PARTITION_BY_REGION = {
    **dict.fromkeys(("us-east-1", "eu-west-1", "ap-east-1", "ap-southeast-2", "sa-east-1"), "aws"),
    "cn-north-1": "aws-cn",
    "us-gov-west-1": "aws-us-gov",
}
PROCESSOR_BY_TYPE = {"ml.m5.xlarge": "cpu", "ml.g5.xlarge": "gpu"}


def find_image(name: str, version: str, region: str, instance_type: str) -> Image | UnknownImage:
    partition, processor = PARTITION_BY_REGION[region], PROCESSOR_BY_TYPE[instance_type]
    try:
        if name in FRAMEWORKS:
            return find_training_image(name, region, partition, processor, version, instance_type)
        return find_algorithm_image(known_algorithms()[name], region, partition, processor, version)
    except UnknownImage as error:
        return error


def compare(sdk_uri: str, version: str, image: Image | UnknownImage) -> str:
    """How the catalog's answer relates to the package's: each difference has its place in docs/images.md."""
    if isinstance(image, UnknownImage):
        if image.unknown_part == "retired":
            return "refused: retired"
        if re.search(r"-py(2|27|3|35|36|37)(-|$)", sdk_uri):
            return "refused: its Python is older than the runtime's"
        return "refused: its tag moves" if sdk_uri.endswith(":latest") else "unexplained"
    if image.uri == sdk_uri:
        return "equal"
    # The package writes the version as it was asked for: 2.6-gpu-py312.
    full_uri = re.sub(rf"(:|-transformers){re.escape(version)}-", rf"\g<1>{image.version}-", sdk_uri)
    if f"{image.uri}-".startswith(f"{full_uri}-"):
        return "equal but for the length of the tag"
    if image.family == "sklearn" and sdk_uri == f"{image.uri}-cpu-py3":
        return "the published tag"
    return "unexplained"


@pytest.mark.parametrize("environment", ["sdk2", "sdk3"])
def test_images_beside_those_of_the_official_package(environment: str, tmp_path: Path) -> None:
    algorithms = [algorithm.id for algorithm in known_algorithms().values() if not algorithm.jumpstart]
    wanted = {
        "frameworks": [*FRAMEWORKS, *algorithms],
        "regions": list(PARTITION_BY_REGION),
        "instance_types": list(PROCESSOR_BY_TYPE),
    }
    client = ROOT / "tests" / "real" / "clients" / "image_uris.py"
    command = [program(environment, "python3"), str(client), json.dumps(wanted)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    counts: Counter[str] = Counter()
    unexplained = []
    for name, version, region, instance_type, sdk_uri in json.loads(result.stdout.splitlines()[-1]):
        if sdk_uri is None:
            continue
        image = find_image(name, version, region, instance_type)
        relation = compare(sdk_uri, version, image)
        counts[relation] += 1
        if relation == "unexplained":
            unexplained.append((name, version, region, instance_type, sdk_uri, image))
    print(dict(counts))
    assert not unexplained
    assert counts.total() >= 2500
    assert counts["equal"] + counts["equal but for the length of the tag"] >= 1300
