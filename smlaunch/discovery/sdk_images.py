"""Asks the official ``sagemaker`` package for an image that the catalog does not know.

Only for a job that needs one, and only if the package is installed (the extra ``sagemaker``). Its import
takes seconds and hundreds of megabytes, so that it runs in a process of its own. The result is accepted only
if its tag has the requested version: for Trainium the package answers any version with PyTorch 1.11.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

from smlaunch.catalog import algorithms, images
from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE, InstanceChoice
from smlaunch.facts.discovered_facts import ResolvedImage
from smlaunch.job.model import Job
from smlaunch.strategies import load_strategy
from smlaunch.strategies.detection import detect_strategy

SDK_TIMEOUT_SECONDS = 120.0
"""The package's import takes 3 to 5 seconds; JumpStart's table is then read from S3."""

MODEL_OPTION = "model"

_TAG_OF_OLD_PYTHON = re.compile(r"-py(2|3[67])\b|(pytorch|tensorflow)[a-z-]*:.*-py3\b")
"""Tags of images that the runtime does not run in: ``py3`` alone is 3.7 at most in those of PyTorch."""

_SDK_FRAMEWORK_NAMES_BY_FAMILY = {"pytorch": ("pytorch", "pytorch-amzn2023")}
"""The package's names of a family, where they differ."""


class ImageQuery(NamedTuple):
    """A query for one image."""

    framework: str
    """A family or an algorithm's id."""
    region: str
    instance_type: str
    version: str | None = None
    model: str | None = None
    """JumpStart's id of its model."""


def resolve_image(
    job: Job, region: str, is_region: bool, imports: frozenset[str] = frozenset()
) -> ResolvedImage | None:
    """Return the image that the official ``sagemaker`` package has for the job, or why it has none; None
    where smlaunch's own catalog of images is sufficient or the job names one.

    ``is_region`` is False for a local endpoint. ``imports`` are the script's: where the job does not state
    how the training is distributed, they show it. JumpStart is SageMaker's collection of ready models.
    """
    if job.image is not None:
        return None
    query = _build_image_query(job, region, imports)
    if query is None:  # the catalog is sufficient
        return None
    if query.framework in ("pytorch-neuronx", "huggingface-neuronx"):  # for AWS Trainium
        return ResolvedImage(problem="the sagemaker package resolves no Neuron image")
    if _is_jumpstart(query.framework):
        if query.model is None:
            return ResolvedImage(
                problem="say which of JumpStart's models it is "
                "(options.model, as lightgbm-classification-model)"
            )
        if not is_region:
            return ResolvedImage(problem="JumpStart works in a region, not on a local endpoint")
    if not _is_sagemaker_sdk_installed():
        return ResolvedImage(
            problem="the sagemaker package may know it: pip install '.[sagemaker]' in a checkout of smlaunch"
        )
    return query_sdk(query)


def query_sdk(query: ImageQuery) -> ResolvedImage:
    """Ask the ``sagemaker`` package for an image, in another process because its import is large. Return the
    image or the problem. A JumpStart image comes with its training script and its model, as S3 addresses."""
    from importlib.metadata import version  # 20 ms, and seldom needed

    sdk_name_and_version = f"sagemaker {version('sagemaker')}"
    # This module as a program prints the answer as the last line, in JSON.
    command = [sys.executable, "-m", __name__, json.dumps(query._asdict())]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SDK_TIMEOUT_SECONDS)
        answer: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        problem = f"{sdk_name_and_version} did not answer in {SDK_TIMEOUT_SECONDS:g} s"
        return ResolvedImage(problem=problem, source=sdk_name_and_version)
    except (IndexError, ValueError):  # no output, or none that is JSON
        error_lines = process.stderr.strip().splitlines()
        last_error_line = error_lines[-1] if error_lines else "nothing"
        problem = f"{sdk_name_and_version} could not be run ({last_error_line})"
        return ResolvedImage(problem=problem, source=sdk_name_and_version)
    if "uri" in answer:
        return ResolvedImage(
            uri=answer["uri"],
            source=sdk_name_and_version,
            script=answer.get("script"),
            model=answer.get("model"),
        )
    return ResolvedImage(
        problem=f"{sdk_name_and_version} says: {answer['problem']}", source=sdk_name_and_version
    )


def _build_image_query(job: Job, region: str, imports: frozenset[str]) -> ImageQuery | None:
    """Return what to ask the ``sagemaker`` package for the job's image; None where smlaunch's own catalog of
    images is sufficient, or the job uses an algorithm or image family that nobody knows. A family is a set of
    images for one framework, such as ``pytorch``.

    ``imports``: the script's, which show the framework where the job does not state it.
    """
    instance_type = job.compute.instance_type or DEFAULT_INSTANCE_TYPE
    version = job.framework_version
    if job.algorithm is not None:
        algorithm = algorithms.find_algorithm(job.algorithm)
        if algorithm is None:
            return None
        model_option = job.options.get(MODEL_OPTION)
        model = None if model_option is None else str(model_option)
        query = ImageQuery(
            framework=algorithm.id, region=region, instance_type=instance_type, version=version, model=model
        )
        # JumpStart is SageMaker's collection of ready models. The catalog has none of its images.
        if algorithm.jumpstart:
            return query
        # The catalog knows the images of all built-in algorithms in the regions where it knows XGBoost's.
        is_in_catalog = images.is_region_known(region, family="xgboost")
        if algorithm.id == "xgboost" and version is not None:
            is_in_catalog = is_in_catalog and images.find_version("xgboost", version) is not None
        return None if is_in_catalog else query
    family = _image_family(job, instance_type, imports)
    # A family without versions is a retired one.
    if family is None or family not in images.image_families() or not images.family_versions(family):
        return None
    is_version_in_catalog = version is None or images.find_version(family, version) is not None
    if is_version_in_catalog and images.is_region_known(region, family):
        return None
    return ImageQuery(framework=family, region=region, instance_type=instance_type, version=version)


def _image_family(job: Job, instance_type: str, imports: frozenset[str]) -> str | None:
    """Return the image family of the job's strategy; PyTorch's where neither the job nor its imports name
    one."""
    detected = detect_strategy(imports)
    strategy_name = job.strategy or ("ddp" if detected is None else detected.strategy)
    needs_gpu_image = InstanceChoice(instance_type, None).processor == "gpu"
    return load_strategy(strategy_name).image_family_for(needs_gpu_image)


def _is_jumpstart(name: str) -> bool:
    algorithm = algorithms.known_algorithms().get(name)
    return algorithm is not None and algorithm.jumpstart


def _is_sagemaker_sdk_installed() -> bool:
    try:
        return find_spec("sagemaker.core") is not None
    except ImportError:  # no sagemaker at all, or its version 2
        return False


# ---- in the other process ---------------------------------------------------------------------------


def main() -> None:
    query = ImageQuery(**json.loads(sys.argv[1]))
    with contextlib.redirect_stdout(sys.stderr):
        result = _answer_query(query)
    sys.stdout.write(json.dumps(result) + "\n")


def _answer_query(query: ImageQuery) -> dict[str, str]:
    """Return ``uri``, the address of the image that the SageMaker SDK has for the query, or ``problem``, the
    reason why there is none.

    The SDK may have several names for one framework: each is tried, and the first problem is returned. An
    image of another version than requested, or with a Python in which smlaunch's program does not run, is no
    result.
    """
    if query.model is not None:
        return _jumpstart_image(query.model, query)  # one of JumpStart's, SageMaker's ready models
    first_problem = ""
    for sdk_framework in _SDK_FRAMEWORK_NAMES_BY_FAMILY.get(query.framework, (query.framework,)):
        try:
            uri = _retrieve_image_uri(sdk_framework, query)
        except Exception as error:  # the package raises errors of all types; each is a result
            first_problem = first_problem or _short_error(error)
            continue
        # An image's tag has the versions of the framework and of Python, as 2.1-gpu-py310.
        if not _has_version_in_tag(query.version, uri):
            first_problem = first_problem or f"{uri}, which is another version"
        elif query.framework in images.image_families() and _TAG_OF_OLD_PYTHON.search(uri):
            first_problem = (
                first_problem or f"{uri}, whose Python is older than the 3.8 that the runtime needs"
            )
        else:
            return {"uri": uri}
    return {"problem": first_problem}


def _jumpstart_image(model: str, query: ImageQuery) -> dict[str, str]:
    """Return JumpStart's image for a model, with its training script and model artifact."""
    from sagemaker.core import image_uris, model_uris, script_uris

    model_arguments: dict[str, Any] = {"region": query.region, "model_id": model, "model_version": "*"}
    image_arguments = {"image_scope": "training", "instance_type": query.instance_type}
    try:
        return {
            "uri": str(image_uris.retrieve(framework=None, **image_arguments, **model_arguments)),
            "script": str(script_uris.retrieve(script_scope="training", **model_arguments)),
            "model": str(model_uris.retrieve(model_scope="training", **model_arguments)),
        }
    except Exception as error:  # each error is a result
        return {"problem": _short_error(error)}


def _short_error(error: Exception) -> str:
    """Return the error without the list of all known values."""
    return f"{type(error).__name__}: {str(error).partition('. ')[0]}"


def _retrieve_image_uri(sdk_framework: str, query: ImageQuery) -> str:
    """Return the address of an image from the SageMaker SDK's tables. ``sdk_framework``: the framework's name
    in the SDK, where "smp" is SageMaker's model parallel library. Raises whatever the SDK raises.

    The tables differ: some have a table for each use of the image, aliases of versions, or Python versions.
    """
    from sagemaker.core import image_uris

    arguments: dict[str, Any] = {"region": query.region, "instance_type": query.instance_type}
    if sdk_framework == "smp":
        distribution = {
            "torch_distributed": {"enabled": True},
            "smdistributed": {"modelparallel": {"enabled": True}},
        }
        return str(
            image_uris.get_training_image_uri(
                framework="pytorch", framework_version=query.version, distribution=distribution, **arguments
            )
        )
    image_scope = "processing" if sdk_framework == "spark" else "training"
    framework_config = image_uris.config_for_framework(sdk_framework)
    framework_config = framework_config.get(image_scope, framework_config)  # not all have scopes
    full_version = framework_config.get("version_aliases", {}).get(query.version, query.version)
    version_config = framework_config["versions"].get(full_version, {})
    # Hugging Face's images have a table for each version of PyTorch that they contain.
    pytorch_versions = sorted(key for key in version_config if key.startswith("pytorch"))
    if pytorch_versions:
        arguments["base_framework_version"] = pytorch_versions[-1]
        version_config = version_config[pytorch_versions[-1]]
    if version_config.get("py_versions"):
        arguments["py_version"] = version_config["py_versions"][-1]  # the newest
    if sdk_framework == "spark":
        arguments["container_version"] = "v1"  # required, and the only one
    return str(
        image_uris.retrieve(sdk_framework, version=query.version, image_scope=image_scope, **arguments)
    )


def _has_version_in_tag(version: str | None, uri: str) -> bool:
    tag = uri.rpartition(":")[2]
    return version is None or tag.startswith(version) or f"-transformers{version}" in tag


if __name__ == "__main__":
    main()
