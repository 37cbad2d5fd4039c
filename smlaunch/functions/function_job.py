"""Compiles a function's call to an ordinary job: the same plan, request and launch as a script's."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from sys import version_info
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

from smlaunch.api.job_kinds import TRAINING
from smlaunch.contract.launch_spec import host_references
from smlaunch.contract.sagemaker_paths import LAUNCH_FILE, RUNTIME_ARCHIVE
from smlaunch.errors import JobError, Problem
from smlaunch.functions.call_identity import SCRIPT_FILE, hash_of_parts
from smlaunch.functions.call_secrets import find_call_secret
from smlaunch.functions.function_source import (
    FunctionSource,
    call_files,
    function_name,
    modules_outside,
    script_in,
    unwrap_function,
)
from smlaunch.functions.host_program import PROGRAM_FILE, SHA256_VARIABLE
from smlaunch.functions.pickled_call import PickledCall, pickle_call
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.planner.plan import RunPlan
from smlaunch.render.plan import Plan
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import AddedProgram, PreparedRun, files_beside_program, prepare
from smlaunch.runs.runtime_archive import load_runtime_archive
from smlaunch.runs.source_archive import LIMIT_BYTES
from smlaunch.text.home_folder import expand_home

_UNSUPPORTED_FIELDS = {
    "entry": "the function is the program; leave it out",
    "algorithm": "the function is the program; leave it out",
    "args": "a function has no command line; pass its arguments to the call",
    "hyperparameters": "a function has no command line; pass its arguments to the call",
    "segments": "a function runs in one job; launch a script as a chain of segments",
    "limits.segment": "a function runs in one job; launch a script as a chain of segments",
}

VERIFIED_START = (
    "import os,sys,hashlib as h;p,*s=sys.argv[1:];[h.sha256(open(f,'rb').read()).hexdigest()==x or "
    "sys.exit('smlaunch: error: '+f+' is not what the job was requested with') "
    f"for f,x in zip((p,p[:-{len(RUNTIME_ARCHIVE)}]+'{LAUNCH_FILE}'),s)];os.execlp('python3','python3',p)"
)
"""Program of the container's entry point: compares the SHA-256 of the runtime and of job.json, which lie in
the bucket, with those of the request, and becomes the runtime. At most 256 characters without a line break,
the API's limit for a word of ContainerEntrypoint. job.json states the hash of the source, and the runtime
compares it."""

_IMAGE_PYTHON = re.compile(r"[:-]py3([0-9]{1,2})(?![0-9])")
"""In the tag of AWS's images: ``...-gpu-py312-cu126-...``."""


class FunctionRun(NamedTuple):
    """A call that is ready to launch."""

    prepared: PreparedRun
    name: str
    """Of the function."""
    warnings: tuple[str, ...] = ()
    """Sentences about the function, which are among the plan's too."""
    parts: Mapping[str, str] = MappingProxyType({})
    """Hashes of what the call is, and of the modules beside it, by what messages call them."""

    @property
    def output_uri(self) -> str:
        return str(self.prepared.plan.planned_jobs[0].request["OutputDataConfig"]["S3OutputPath"])


def prepare_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    job: Job,
    target: Target | None,
) -> FunctionRun:
    """Plan the run of a call. Changes nothing anywhere. Raises JobError with every problem found: of the
    function, of the job's fields, and of the plan."""
    name = function_name(function)
    problems = [*_find_function_problems(function, name), *_find_field_problems(job)]
    if problems:
        raise JobError(problems)
    source = FunctionSource(function)
    folder = source.folder() if job.source is None else expand_home(job.source)
    call = pickle_call(function, args, kwargs, name, folder)
    call_problem = _find_call_problem(call, name, job)
    if call_problem is not None:
        raise JobError([call_problem])
    with TemporaryDirectory(prefix="smlaunch-function-") as scratch_folder:
        root = Path(scratch_folder, "source") if folder is None else folder
        analyzed_file = Path(scratch_folder, "function.py")
        analyzed_file.write_text(source.analyzed_text(call.modules), "utf-8", "surrogateescape")
        if folder is None:
            root.mkdir()
        program = AddedProgram(
            name=name,
            files=call_files(call),
            analyzed_file=analyzed_file,
            sha256=hash_of_parts(call.parts),
            script=None if SCRIPT_FILE in call.parts else script_in(folder),
            variables={SHA256_VARIABLE: call.sha256},
            warnings=tuple(_find_module_warnings(call, folder)),
        )
        function_job = job.with_changes(entry=str(root / PROGRAM_FILE), source=str(root))
        try:
            prepared = prepare(function_job, target, program=program)
        except JobError as error:
            raise JobError(
                problem._replace(message=problem.message.replace(str(analyzed_file), source.shown_name))
                for problem in error.problems
            ) from None
    problems = list(_find_plan_problems(prepared.plan))
    if problems:
        raise JobError(problems)
    files = {} if prepared.source is None else files_beside_program(program, prepared.source)
    parts = {**call.parts, **{f"the file {path}": digest for path, digest in files.items()}}
    verified = prepared._replace(plan=_with_verified_start(prepared.plan))
    return FunctionRun(verified, name, program.warnings, parts)


def _find_call_problem(call: PickledCall, name: str, job: Job) -> Problem | None:
    """Return why a pickled call cannot be sent: it is too large, or holds what looks like a secret. ``name``:
    of the function."""
    if len(call.content) > LIMIT_BYTES:
        return Problem(
            "function",
            f"the call takes {len(call.content):,} bytes, and at most {LIMIT_BYTES:,} are sent with it; give "
            "the data as an input (Job(inputs={...}))",
        )
    if job.include_secrets:
        return None
    secret_kind = find_call_secret(call)
    if secret_kind is None:
        return None
    return Problem(
        "function",
        f"{name}, its arguments or the globals that it uses hold what looks like a secret ({secret_kind}), "
        "which would be stored in the bucket; let the function read it on the host (AWS Secrets Manager), or "
        "send it by Job(include_secrets=True)",
    )


def _with_verified_start(plan: Plan) -> Plan:
    """Return the plan with the hashes of runtime and job.json in its request, so that a host runs nothing
    that somebody else has put into the bucket: what a host prints decides which result is unpickled here."""
    planned_job = plan.planned_jobs[0]
    uses_mpi = any(upload.mpi for upload in plan.uploads if upload.kind == "runtime")
    job_json = next(upload.content or "" for upload in plan.uploads if upload.kind == "launch")
    hashes = [
        hashlib.sha256(content).hexdigest() for content in (load_runtime_archive(uses_mpi), job_json.encode())
    ]
    algorithm = planned_job.request["AlgorithmSpecification"]
    python, runtime = algorithm["ContainerEntrypoint"]
    entrypoint = [python, "-c", VERIFIED_START, runtime, *hashes]
    request = {
        **planned_job.request,
        "AlgorithmSpecification": {**algorithm, "ContainerEntrypoint": entrypoint},
    }
    return replace(plan, planned_jobs=(replace(planned_job, request=request),))


def _find_function_problems(function: Any, name: str) -> Iterator[Problem]:
    if not callable(function):
        yield Problem("function", f"a function is needed, not {type(function).__name__}: submit(train, 0.1)")
        return
    inner = unwrap_function(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        yield Problem(
            "function", f"{name} is a generator, which cannot leave its process; let it return a list"
        )
    elif inspect.iscoroutinefunction(inner):
        yield Problem(
            "function", f"{name} is a coroutine; submit a function that calls asyncio.run({name}())"
        )


def _find_field_problems(job: Any) -> Iterator[Problem]:
    """Yield a problem for each field of the job that a function's run cannot have."""
    if not isinstance(job, Job):
        yield Problem("job", f"a Job is needed, not {type(job).__name__}: Job(compute=Compute(hosts=2))")
        return
    if job.output is not None and job.output.compression == "none":
        message = "what a function returns is read from an archive; leave it out, or write gzip"
        yield Problem("output.compression", message)
    mapping = job.to_mapping()
    for path, message in _UNSUPPORTED_FIELDS.items():
        section, _, field = path.rpartition(".")
        stated = mapping.get(section, {}) if section else mapping
        if field in stated:
            yield Problem(path, message)
    max_runtime, longest_seconds = job.limits.max_runtime, TRAINING.max_runtime_seconds
    if max_runtime and longest_seconds is not None and parse_duration(max_runtime) > longest_seconds:
        longest = format_duration(longest_seconds)
        message = f"a function runs in one job, which takes {longest} at most; launch a script as a chain"
        yield Problem("limits.max_runtime", message)


def _find_module_warnings(call: PickledCall, folder: Path | None) -> Iterator[str]:
    for name, file in modules_outside(call.modules, folder).items():
        where = "no folder is sent" if folder is None else f"{folder} is sent"
        yield (
            f"source: the function needs the module {name} of {file}, and {where}: name a folder that holds "
            "both as Job(source=...), or install it on the hosts (requirements, or the image)"
        )


def _find_plan_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield what a function's run cannot be, although a script's could."""
    if plan.shard_plans or not plan.workflow.is_single_job:
        message = "the plan takes several jobs, and a function runs in one: take a shorter limits.max_runtime"
        yield Problem("limits.max_runtime", message)
        return
    planned_job = plan.planned_jobs[0]
    spec = planned_job.launch_spec
    if planned_job.operation != TRAINING.create_operation or spec is None:
        yield Problem("strategy", f"{plan.strategy} starts no training job, which a function needs")
        return
    arguments = [argument for service in spec.services for argument in service.argv]
    if any(reference.name == "source" for argument in arguments for reference in host_references(argument)):
        message = f"{plan.strategy} starts the program beside the ranks too, and only ranks call a function"
        yield Problem("strategy", message)
    runs_image = plan.facts.target == "aws" or plan.facts.endpoint.runs_images
    image_python = _IMAGE_PYTHON.search(plan.image.rpartition("/")[2]) if runs_image else None
    if image_python is not None and int(image_python[1]) != version_info.minor:
        image_version, own_version = f"3.{image_python[1]}", "{}.{}".format(*version_info[:2])
        yield Problem(
            "image",
            f"{plan.image} has Python {image_version}, and this is Python {own_version}: functions travel as "
            f"bytecode, which differs between them; submit from Python {image_version}, or name an image "
            f"(image, framework_version) with Python {own_version}",
        )
