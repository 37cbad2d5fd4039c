"""Asks the official ``sagemaker`` package for an image that the catalog does not know.

Only where a job needs one, and only if the package is installed (the extra ``sagemaker``): importing it takes
seconds and hundreds of megabytes, so a process of its own does it and prints the answer. The answer is taken
only if its tag is of the version that was asked for: for Trainium the package answers any version with
PyTorch 1.11.
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
from smlaunch.job import Job
from smlaunch.planning.choose import DEFAULT_INSTANCE_TYPE
from smlaunch.planning.image import processor_of
from smlaunch.planning.libraries import spoken_for
from smlaunch.planning.surroundings import ResolvedImage
from smlaunch.strategies import load

TIMEOUT = 120.0
"""Seconds. Importing the package takes 3 to 5; JumpStart's table is then read from S3."""

MODEL_OPTION = "model"

_OLD_PYTHON = re.compile(r"-py(2|3[67])\b|(pytorch|tensorflow)[a-z-]*:.*-py3\b")
"""Tags of images that the runtime does not run in: ``py3`` alone is 3.7 at most in those of PyTorch."""

_FRAMEWORKS = {"pytorch": ("pytorch", "pytorch-amzn2023")}
"""Family -> what the package calls it, where that is not the same."""


@dataclass(frozen=True)
class Question:
    """``framework``: a family or an algorithm's id. ``model``: JumpStart's id of what it hosts."""

    framework: str
    region: str
    instance_type: str
    version: str | None = None
    model: str | None = None


def resolved_image(
    job: Job, region: str, is_region: bool, imports: frozenset[str] = frozenset()
) -> ResolvedImage | None:
    """None where the catalog knows the image, or the job names one. ``is_region``: else a local endpoint.
    ``imports``: the script's, which tell the strategy where the job does not."""
    if job.image is not None:
        return None
    question = _question(job, region, imports)
    if question is None:
        return None
    if question.framework in ("pytorch-neuronx", "huggingface-neuronx"):
        return ResolvedImage(problem="the sagemaker package resolves no Neuron image")
    if _is_jumpstart(question.framework):
        if question.model is None:
            told = "say which of JumpStart's models it is (options.model, as lightgbm-classification-model)"
            return ResolvedImage(problem=told)
        if not is_region:
            return ResolvedImage(problem="JumpStart answers in a region, not on a local endpoint")
    if not _is_installed():
        return ResolvedImage(problem="pip install 'smlaunch[sagemaker]', which may know it")
    return ask(question)


def ask(question: Question) -> ResolvedImage:
    """What the package says, asked in another process."""
    source = f"sagemaker {installed_version('sagemaker')}"
    command = [sys.executable, "-m", __name__, json.dumps(asdict(question))]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        answer: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return ResolvedImage(problem=f"{source} did not answer in {TIMEOUT:g} s", source=source)
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
        return ResolvedImage(problem=f"{source} could not be asked ({last})", source=source)
    if "uri" in answer:
        return ResolvedImage(
            uri=answer["uri"], source=source, script=answer.get("script"), model=answer.get("model")
        )
    return ResolvedImage(problem=f"{source} says: {answer['problem']}", source=source)


def _question(job: Job, region: str, imports: frozenset[str]) -> Question | None:
    """None where there is nothing to ask."""
    instance_type = job.compute.instance_type or DEFAULT_INSTANCE_TYPE
    version = job.framework_version
    if job.algorithm is not None:
        algorithm = algorithms.find(job.algorithm)
        if algorithm is None:
            return None
        model = job.options.get(MODEL_OPTION)
        question = Question(
            algorithm.id, region, instance_type, version, None if model is None else str(model)
        )
        if algorithm.jumpstart:
            return question
        known = images.has_region(region, "xgboost")
        if algorithm.id == "xgboost" and version is not None:
            known = known and images.find_version("xgboost", version) is not None
        return None if known else question
    family = _family(job, instance_type, imports)
    if family is None or family not in images.families() or not images.versions(family):
        return None
    known = version is None or images.find_version(family, version) is not None
    return (
        None
        if known and images.has_region(region, family)
        else Question(family, region, instance_type, version)
    )


def _family(job: Job, instance_type: str, imports: frozenset[str]) -> str | None:
    """Of images: PyTorch's, where neither the job nor the script's libraries tell the strategy."""
    spoken = spoken_for(imports)
    name = job.strategy or ("ddp" if spoken is None else spoken.strategy)
    return load(name).family_on(processor_of((instance_type, None)) == "gpu")


def _is_jumpstart(name: str) -> bool:
    row = algorithms.known_algorithms().get(name)
    return row is not None and row.jumpstart


def _is_installed() -> bool:
    try:
        return find_spec("sagemaker.core") is not None
    except ImportError:  # no sagemaker at all, or its version 2
        return False


# ---- in the process of its own ---------------------------------------------------------------------------


def main() -> None:
    question = Question(**json.loads(sys.argv[1]))
    with contextlib.redirect_stdout(sys.stderr):
        answer = _answer(question)
    sys.stdout.write(json.dumps(answer) + "\n")


def _answer(question: Question) -> dict[str, str]:
    if question.model is not None:
        return _hosted(question.model, question)
    problem = ""
    for framework in _FRAMEWORKS.get(question.framework, (question.framework,)):
        try:
            uri = _retrieve(framework, question)
        except Exception as error:  # the package raises of all kinds, and each is an answer
            problem = problem or _in_short(error)
            continue
        if not _is_of(question.version, uri):
            problem = problem or f"{uri}, which is another version"
        elif question.framework in images.families() and _OLD_PYTHON.search(uri):
            problem = problem or f"{uri}, whose Python is older than the 3.8 that the runtime needs"
        else:
            return {"uri": uri}
    return {"problem": problem}


def _hosted(model: str, question: Question) -> dict[str, str]:
    """JumpStart's image for a model, with the script and the artifact that it trains with."""
    from sagemaker.core import image_uris, model_uris, script_uris

    which: dict[str, Any] = {"region": question.region, "model_id": model, "model_version": "*"}
    on = {"image_scope": "training", "instance_type": question.instance_type}
    try:
        return {
            "uri": str(image_uris.retrieve(framework=None, **on, **which)),
            "script": str(script_uris.retrieve(script_scope="training", **which)),
            "model": str(model_uris.retrieve(model_scope="training", **which)),
        }
    except Exception as error:  # each is an answer
        return {"problem": _in_short(error)}


def _in_short(error: Exception) -> str:
    """Without the list of everything there is."""
    return f"{type(error).__name__}: {str(error).partition('. ')[0]}"


def _retrieve(framework: str, question: Question) -> str:
    from sagemaker.core import image_uris

    where: dict[str, Any] = {"region": question.region, "instance_type": question.instance_type}
    if framework == "smp":
        distribution = {
            "torch_distributed": {"enabled": True},
            "smdistributed": {"modelparallel": {"enabled": True}},
        }
        return str(
            image_uris.get_training_image_uri(
                framework="pytorch", framework_version=question.version, distribution=distribution, **where
            )
        )
    scope = "processing" if framework == "spark" else "training"
    table = image_uris.config_for_framework(framework)
    table = table.get(scope, table)
    version = table.get("version_aliases", {}).get(question.version, question.version)
    row = table["versions"].get(version, {})
    bases = sorted(name for name in row if name.startswith("pytorch"))
    if bases:
        where["base_framework_version"] = bases[-1]
        row = row[bases[-1]]
    if row.get("py_versions"):
        where["py_version"] = row["py_versions"][-1]
    if framework == "spark":
        where["container_version"] = "v1"
    return str(image_uris.retrieve(framework, version=question.version, image_scope=scope, **where))


def _is_of(version: str | None, uri: str) -> bool:
    tag = uri.rpartition(":")[2]
    return version is None or tag.startswith(version) or f"-transformers{version}" in tag


if __name__ == "__main__":
    main()
