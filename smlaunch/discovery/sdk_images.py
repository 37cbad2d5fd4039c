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
from dataclasses import asdict, dataclass
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from typing import Any

from smlaunch.catalog import algorithms, images
from smlaunch.catalog.instances import InstanceChoice
from smlaunch.job.model import Job
from smlaunch.planner.facts import ResolvedImage
from smlaunch.planner.image_choice import image_processor
from smlaunch.planner.launch_choices import DEFAULT_INSTANCE_TYPE
from smlaunch.planner.strategy_detection import detect_strategy
from smlaunch.strategies import load_strategy

SDK_TIMEOUT_SECONDS = 120.0
"""The package's import takes 3 to 5 seconds; JumpStart's table is then read from S3."""

MODEL_OPTION = "model"

_TAG_OF_OLD_PYTHON = re.compile(r"-py(2|3[67])\b|(pytorch|tensorflow)[a-z-]*:.*-py3\b")
"""Tags of images that the runtime does not run in: ``py3`` alone is 3.7 at most in those of PyTorch."""

_SDK_NAMES_BY_FAMILY = {"pytorch": ("pytorch", "pytorch-amzn2023")}
"""The package's names of a family, where they differ."""


@dataclass(frozen=True)
class ImageQuery:
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
    """Return the package's image; None where the catalog knows the image or the job names one.

    ``is_region`` is False for a local endpoint. ``imports`` are the script's, which determine the strategy
    where the job does not.
    """
    if job.image is not None:
        return None
    query = _image_query(job, region, imports)
    if query is None:
        return None
    if query.framework in ("pytorch-neuronx", "huggingface-neuronx"):
        return ResolvedImage(problem="the sagemaker package resolves no Neuron image")
    if _is_jumpstart(query.framework):
        if query.model is None:
            problem = (
                "say which of JumpStart's models it is (options.model, as lightgbm-classification-model)"
            )
            return ResolvedImage(problem=problem)
        if not is_region:
            return ResolvedImage(problem="JumpStart works in a region, not on a local endpoint")
    if not _is_installed():
        return ResolvedImage(problem="the sagemaker package may know it: pip install 'smlaunch[sagemaker]'")
    return query_sdk(query)


def query_sdk(query: ImageQuery) -> ResolvedImage:
    """Run the query in another process and return its result."""
    source = f"sagemaker {installed_version('sagemaker')}"
    command = [sys.executable, "-m", __name__, json.dumps(asdict(query))]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SDK_TIMEOUT_SECONDS)
        result: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return ResolvedImage(problem=f"{source} did not answer in {SDK_TIMEOUT_SECONDS:g} s", source=source)
    except (IndexError, ValueError):
        last_line = (process.stderr.strip().splitlines() or ["nothing"])[-1]
        return ResolvedImage(problem=f"{source} could not be run ({last_line})", source=source)
    if "uri" in result:
        return ResolvedImage(
            uri=result["uri"], source=source, script=result.get("script"), model=result.get("model")
        )
    return ResolvedImage(problem=f"{source} says: {result['problem']}", source=source)


def _image_query(job: Job, region: str, imports: frozenset[str]) -> ImageQuery | None:
    """Return the query; None where the catalog is sufficient."""
    instance_type = job.compute.instance_type or DEFAULT_INSTANCE_TYPE
    version = job.framework_version
    if job.algorithm is not None:
        algorithm = algorithms.find_algorithm(job.algorithm)
        if algorithm is None:
            return None
        model = job.options.get(MODEL_OPTION)
        query = ImageQuery(
            algorithm.id, region, instance_type, version, None if model is None else str(model)
        )
        if algorithm.jumpstart:
            return query
        is_known = images.has_region(region, "xgboost")
        if algorithm.id == "xgboost" and version is not None:
            is_known = is_known and images.find_version("xgboost", version) is not None
        return None if is_known else query
    family = _image_family(job, instance_type, imports)
    if family is None or family not in images.image_families() or not images.family_versions(family):
        return None
    is_known = version is None or images.find_version(family, version) is not None
    return (
        None
        if is_known and images.has_region(region, family)
        else ImageQuery(family, region, instance_type, version)
    )


def _image_family(job: Job, instance_type: str, imports: frozenset[str]) -> str | None:
    """Return the image family of the job's strategy; PyTorch's where neither the job nor its imports name
    one."""
    spoken = detect_strategy(imports)
    name = job.strategy or ("ddp" if spoken is None else spoken.strategy)
    return load_strategy(name).image_family_for(image_processor(InstanceChoice(instance_type, None)) == "gpu")


def _is_jumpstart(name: str) -> bool:
    algorithm = algorithms.known_algorithms().get(name)
    return algorithm is not None and algorithm.jumpstart


def _is_installed() -> bool:
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
    reason why there is none."""
    if query.model is not None:
        return _jumpstart_image(query.model, query)
    problem = ""
    for framework in _SDK_NAMES_BY_FAMILY.get(query.framework, (query.framework,)):
        try:
            uri = _retrieve_image_uri(framework, query)
        except Exception as error:  # the package raises errors of all types; each is a result
            problem = problem or _short_error(error)
            continue
        if not _has_version(query.version, uri):
            problem = problem or f"{uri}, which is another version"
        elif query.framework in images.image_families() and _TAG_OF_OLD_PYTHON.search(uri):
            problem = problem or f"{uri}, whose Python is older than the 3.8 that the runtime needs"
        else:
            return {"uri": uri}
    return {"problem": problem}


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


def _retrieve_image_uri(framework: str, query: ImageQuery) -> str:
    """Return the address of an image from the SageMaker SDK's tables. ``framework``: as the SDK calls it."""
    from sagemaker.core import image_uris

    arguments: dict[str, Any] = {"region": query.region, "instance_type": query.instance_type}
    if framework == "smp":
        distribution = {
            "torch_distributed": {"enabled": True},
            "smdistributed": {"modelparallel": {"enabled": True}},
        }
        return str(
            image_uris.get_training_image_uri(
                framework="pytorch", framework_version=query.version, distribution=distribution, **arguments
            )
        )
    scope = "processing" if framework == "spark" else "training"
    config = image_uris.config_for_framework(framework)
    config = config.get(scope, config)
    version = config.get("version_aliases", {}).get(query.version, query.version)
    version_config = config["versions"].get(version, {})
    base_names = sorted(name for name in version_config if name.startswith("pytorch"))
    if base_names:
        arguments["base_framework_version"] = base_names[-1]
        version_config = version_config[base_names[-1]]
    if version_config.get("py_versions"):
        arguments["py_version"] = version_config["py_versions"][-1]
    if framework == "spark":
        arguments["container_version"] = "v1"
    return str(image_uris.retrieve(framework, version=query.version, image_scope=scope, **arguments))


def _has_version(version: str | None, uri: str) -> bool:
    tag = uri.rpartition(":")[2]
    return version is None or tag.startswith(version) or f"-transformers{version}" in tag


if __name__ == "__main__":
    main()
