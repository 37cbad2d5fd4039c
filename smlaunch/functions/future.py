"""The future of a submitted function: ``concurrent.futures.Future``, for the result of a run."""

from __future__ import annotations

import concurrent.futures
import os
import threading
from functools import partial
from typing import Any, Generic, TypeVar

from smlaunch.aws.service_errors import call_with_retries
from smlaunch.errors import JobError, Problem
from smlaunch.functions.function_output import FunctionOutput
from smlaunch.functions.host_program import SHA256_VARIABLE
from smlaunch.runs.attach_run import attach
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run import Run

_Result = TypeVar("_Result")


class Future(concurrent.futures.Future[_Result], Generic[_Result]):
    """What a function returns or raises on its hosts, once it does.

    It works with ``concurrent.futures.wait`` and ``as_completed``. A thread of this process follows the run;
    when the process ends before, the run goes on (except on an endpoint of this process), and ``attach`` or
    the same call under the same name gets the result later.
    """

    def __init__(self, run: Run, output: FunctionOutput) -> None:
        super().__init__()
        self.run = run
        """The run, as ``smlaunch.launch`` returns it."""
        self._output = output
        self._cancel_lock = threading.Lock()
        self._process = os.getpid()
        # A daemon: the end of the process does not wait for the end of the run.
        thread = threading.Thread(target=self._follow, name=f"smlaunch-{run.name}", daemon=True)
        thread.start()

    @classmethod
    def attach(cls, name: str, target: Target | None = None) -> Future[Any]:
        """Return the future of an existing function's run by its name, whatever has become of the function
        here since. What it has returned or raised is unpickled here: name a run of your own account's.

        Objects of classes that this process has under the same module and name come back as such. Raises
        JobError where there is no such run or no function's.
        """
        run = attach(name, target)
        with translate_call_errors(run.target):
            description = call_with_retries(partial(run.target.control_plane.describe_job, run.jobs[-1]))
        if SHA256_VARIABLE not in description.get("Environment", {}):
            text = (
                f"run {run.name} is of a script, and no function's: smlaunch.attach({name!r}, ...) finds it"
            )
            raise JobError([Problem("", text)])
        output_uri = str(description["OutputDataConfig"]["S3OutputPath"])
        return cls(run, FunctionOutput(run, run.target, output_uri, "the function"))

    def running(self) -> bool:
        """Return whether the run has not ended and was not cancelled: hosts may still be starting."""
        return not self.done()

    def result(self, timeout: float | None = None) -> _Result:
        """Wait for the function's result, for ``timeout`` seconds at most, and return it. Raises its
        exception, TimeoutError, CancelledError, and RuntimeError in a forked process before the run's end."""
        self._refuse_forked_process()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait as ``result`` does, and return the exception that it would raise; None for a result."""
        self._refuse_forked_process()
        return super().exception(timeout)

    def _refuse_forked_process(self) -> None:
        if not self.done() and os.getpid() != self._process:
            raise RuntimeError(
                f"the thread that follows run {self.run.name} is in process {self._process}, of which this "
                "is a fork: ask there, or follow the run itself (future.run.result())"
            )

    def cancel(self) -> bool:
        """Stop the run: hosts get SIGTERM and 120 seconds. Returns False for a run that has ended, True once
        the stop is requested; ``result`` then raises CancelledError. Raises what ``Run.stop`` raises."""
        with self._cancel_lock:
            if self.done():
                return self.cancelled()
            if self.run.stop().exit_code is not None:  # it has ended, and the thread is about to find out
                return False
            if not super().cancel():
                return False
            self.set_running_or_notify_cancel()  # tells those that wait for it
            return True

    def _follow(self) -> None:
        try:
            result = self._output.wait()
        except BaseException as error:
            self._set_once(exception=error)
        else:
            self._set_once(result=result)

    def _set_once(self, result: _Result | None = None, exception: BaseException | None = None) -> None:
        try:
            if exception is not None:
                self.set_exception(exception)
            else:
                self.set_result(result)  # type: ignore[arg-type]
        except concurrent.futures.InvalidStateError:  # it was cancelled meanwhile
            return
