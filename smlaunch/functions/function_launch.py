"""Launches a prepared call. If another call has the name, says what is different and where its result is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from smlaunch.aws.interfaces import CallError
from smlaunch.contract.formats import FormatError
from smlaunch.errors import JobError, Problem, SmlaunchError
from smlaunch.functions.function_job import FunctionRun
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.run import Run
from smlaunch.runs.run_folder import RunFolder
from smlaunch.runs.submit_job import OtherJobError
from smlaunch.text.format import list_names


def launch_call(function_run: FunctionRun) -> Run:
    """Launch the call, or attach to its run. Raises JobError for a name that another job has, and what
    ``launch`` raises."""
    prepared = function_run.prepared
    plan, target = prepared.plan, prepared.target
    run_folder = RunFolder.for_run(plan.facts.bucket, plan.run)
    try:
        run = launch(prepared)
    except OtherJobError as error:
        parts: Mapping[str, str] = {}
        with suppress(CallError, FormatError, ValueError, KeyError):  # of another release, or not readable
            parts = run_folder.load_call_parts(target.storage)
        attach_call = f"smlaunch.Future.attach({plan.run!r}, {target.python_call}).result()"
        if parts:
            message = (
                f"run {plan.run} exists already and was made of another call: "
                f"{_describe_difference(parts, function_run.parts)}. Its result is still yours: "
                f"{attach_call}. Take another name to run this call"
            )
        else:  # of a script's run, or of an earlier release's
            message = (
                f"run {plan.run} exists already and was made of another call or job; take another name. If "
                f"it is a function's, {attach_call} has its result"
            )
        raise JobError([Problem("name", message)]) from error
    if not (run.attached or prepared.has_generated_name):
        with suppress(CallError, SmlaunchError):  # the run goes on; only a later message says less
            run_folder.save_call_parts(function_run.parts, target.storage)
    return run


def _describe_difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return a clause that names what is different in the two calls."""
    changed = [name for name in now if name in before and before[name] != now[name]]
    texts = [
        f"{text} {list_names(names)}"
        for text, names in (
            ("different are", changed),
            ("new are", [name for name in now if name not in before]),
            ("gone are", [name for name in before if name not in now]),
        )
        if names
    ]
    if not texts:
        return "the job, its inputs or its source folder are different"
    if any(name.startswith(("the argument", "the global", "the enclosed")) for name in changed):
        texts.append(
            "a value that is the same to you is not the same in two processes if its pickle holds random "
            "numbers, times or addresses"
        )
    return "; ".join(texts)
