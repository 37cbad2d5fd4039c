"""``submit`` and ``remote``: call a Python function on the hosts of a job."""

from __future__ import annotations

import functools
import operator
import os
import warnings
from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload

from smlaunch.functions.function_job import prepare_function
from smlaunch.functions.function_launch import launch_call
from smlaunch.functions.function_output import FunctionOutput
from smlaunch.functions.future import Future
from smlaunch.functions.host_program import SHA256_VARIABLE
from smlaunch.job.model import Job
from smlaunch.runs.launch_target import Target

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def submit(
    function: Callable[..., _Result],
    /,
    *args: Any,
    job: Job | None = None,
    target: Target | None = None,
    **kwargs: Any,
) -> Future[_Result]:
    """Call ``function(*args, **kwargs)`` in every rank of a job, and return the future of rank 0's result.

    ``job`` says where and how: its hosts, strategy, inputs, limits, name. It names no program. ``target`` is
    where to launch, as for ``launch``; the default is the configured region. For a function that has a
    parameter of one of these names, use ``remote``.

    The same call under the same ``job.name`` attaches to the existing run; ``Future.attach`` finds it by its
    name alone. Raises JobError with every problem, such as what is different in the call that has the name,
    MachineError without cloudpickle (the extra ``functions``), and what ``launch`` raises.
    """
    if isinstance(function, RemoteFunction):
        function = function.function
    function_run = prepare_function(function, args, kwargs, Job() if job is None else job, target)
    for warning in function_run.warnings:  # a plan is not printed here
        warnings.warn(warning, stacklevel=2)
    run = launch_call(function_run)
    output = FunctionOutput(run, run.target, function_run.output_uri, function_run.name)
    return Future(run, output)


class RemoteFunction(Generic[_Parameters, _Result]):
    """A function that runs on the hosts of a job when it is called.

    A call waits for the result. ``submit`` returns a future; ``function`` is the function itself, to call it
    here. On a host of a function's run a call is an ordinary one, so that functions may call each other and
    themselves.
    """

    def __init__(
        self, function: Callable[_Parameters, _Result], job: Job | None = None, target: Target | None = None
    ) -> None:
        self.function = function
        self.job = job
        self.target = target
        functools.update_wrapper(self, function)

    def __call__(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        """Call the function on the hosts, and return rank 0's result. Raises the function's exception."""
        if SHA256_VARIABLE in os.environ:
            return self.function(*args, **kwargs)
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: _Parameters.args, **kwargs: _Parameters.kwargs) -> Future[_Result]:
        """Launch the call and return its future."""
        call = functools.partial(self.function, **kwargs) if {"job", "target"} & kwargs.keys() else None
        if call is not None:  # the function's own parameters
            return submit(call, *args, job=self.job, target=self.target)
        return submit(self.function, *args, job=self.job, target=self.target, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method to its object."""
        if instance is None:
            return self
        return RemoteFunction(MethodType(self.function, instance), self.job, self.target)

    def __reduce__(self) -> tuple[Any, ...]:
        """On a host it is the function itself: job and target are this process's."""
        return operator.itemgetter(0), ((self.function,),)


@overload
def remote(function: Callable[_Parameters, _Result], /) -> RemoteFunction[_Parameters, _Result]: ...
@overload
def remote(
    *, job: Job | None = None, target: Target | None = None
) -> Callable[[Callable[_Parameters, _Result]], RemoteFunction[_Parameters, _Result]]: ...
def remote(
    function: Callable[..., Any] | None = None,
    /,
    *,
    job: Job | None = None,
    target: Target | None = None,
) -> Any:
    """Decorate a function so that its calls run on the hosts of a job: ``@remote(job=Job(...))``.

    ``job`` and ``target`` as for ``submit``. Each call is a run of its own, unless the job has a name.
    """
    if function is None:
        return functools.partial(RemoteFunction, job=job, target=target)
    return RemoteFunction(function, job, target)
