"""What a smoke job has shown, as checks with names. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smlaunch.smoke.smoke import PREFIX

Verdict = Literal["confirmed", "failed", "not reached"]


class SmokeCheck(NamedTuple):
    """A check. ``not reached``: nothing is known, because the job ended before."""

    name: str
    verdict: Verdict
    text: str


@dataclass
class Observations:
    """What the client has read of the job."""

    nonce: str
    """The random text that was sent with the job."""
    data_sha256: str
    """Of the channel's one file, as it was sent."""
    events: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the job's lines say, by event."""
    live_events: set[str] = field(default_factory=set)
    """Events whose line was read while the job ran and had not been asked to stop."""
    has_ended: bool = False
    """The service has said that the job trains no more."""
    synced_seconds: float | None = None
    """From the line that says that a checkpoint is written until it was in S3, with the job still running."""
    is_checkpoint_changed: bool = False
    """It was there with another content."""
    is_stop_requested: bool = False
    stop_problem: str | None = None
    """Why the request to stop was refused."""
    saved_after_stop: bool = False
    """The checkpoint that the script wrote after SIGTERM is in S3, with its content."""
    status: str = ""
    """As DescribeTrainingJob says."""
    failure_reason: str = ""
    has_model: bool = False
    """The archive that the service made of the model's folder is in S3."""
    billable_seconds: int | None = None
    problem: str | None = None
    """What kept the job from starting, or the client from following it."""

    def add_line(self, text: str) -> None:
        """Take a line of the job's log; others than the program's are ignored."""
        if not text.startswith(PREFIX):
            return
        try:
            facts = json.loads(text[len(PREFIX) :])
        except ValueError:
            return
        if isinstance(facts, dict) and isinstance(facts.get("event"), str):
            self.events.setdefault(facts["event"], facts)
            if not (self.is_stop_requested or self.has_ended):
                self.live_events.add(facts["event"])

    @property
    def is_waiting(self) -> bool:
        """The job runs, and its program has nothing left to do but to be stopped."""
        return "waiting" in self.live_events and not (self.is_stop_requested or self.has_ended)


def describe_end(observed: Observations) -> str:
    """Return how the job ended, as a clause."""
    if observed.problem is not None:
        return observed.problem
    return f"the job is {observed.status}" + (
        f": {observed.failure_reason}" if observed.failure_reason else ""
    )


def evaluate(observed: Observations) -> list[SmokeCheck]:
    """Return all checks in the order of the job's life."""
    verdict_by_name = {
        "entrypoint": _check_entrypoint,
        "channel": _check_channel,
        "live-log": _check_live_log,
        "checkpoint-sync": _check_sync,
        "stop": _check_stop,
        "checkpoint-after-stop": _check_checkpoint_after_stop,
        "status": _check_status,
        "model": _check_model,
    }
    return [SmokeCheck(name, *check(observed)) for name, check in verdict_by_name.items()]


_NOT_REACHED: tuple[Verdict, str] = ("not reached", "the job did not come to it")


def _check_entrypoint(observed: Observations) -> tuple[Verdict, str]:
    started = observed.events.get("started")
    if started is None:
        return "failed", f"no line of the program arrived; {describe_end(observed)}"
    if started.get("nonce") != observed.nonce:
        return "failed", "the program got another argument than the one that was sent"
    return "confirmed", f"the script ran on {started.get('host')}, Python {started.get('python')}"


def _check_channel(observed: Observations) -> tuple[Verdict, str]:
    channel = observed.events.get("channel")
    if channel is None:
        return _NOT_REACHED
    if channel.get("sha256") != [observed.data_sha256]:
        return "failed", f"the channel's folder has other content than was sent: {channel.get('names')}"
    return "confirmed", "the channel has the file that was sent, with its content"


def _check_live_log(observed: Observations) -> tuple[Verdict, str]:
    if "waiting" not in observed.events:
        return _NOT_REACHED
    if "waiting" not in observed.live_events:
        return "failed", "the log arrived only after the job had ended"
    return "confirmed", "lines of the log arrived while the job ran"


def _check_sync(observed: Observations) -> tuple[Verdict, str]:
    if "waiting" not in observed.live_events:
        return _NOT_REACHED
    if observed.is_checkpoint_changed:
        return "failed", "the checkpoint in S3 has other content than the script wrote"
    if observed.synced_seconds is None:
        return "failed", f"no checkpoint was in S3 while the job ran; {describe_end(observed)}"
    return (
        "confirmed",
        f"a checkpoint was in S3 {observed.synced_seconds:.0f} s after its line was in the log",
    )


def _check_stop(observed: Observations) -> tuple[Verdict, str]:
    if observed.stop_problem is not None:
        return "failed", f"the request to stop was refused: {observed.stop_problem}"
    if not observed.is_stop_requested:
        return _NOT_REACHED
    if "stopped" not in observed.events:
        return "failed", f"the program got no SIGTERM; {describe_end(observed)}"
    if "saved" not in observed.events:
        return "failed", "the program was killed before it had saved after SIGTERM"
    return "confirmed", "the program got SIGTERM and had time to save"


def _check_checkpoint_after_stop(observed: Observations) -> tuple[Verdict, str]:
    if "saved" not in observed.events:
        return _NOT_REACHED
    if not observed.saved_after_stop:
        return "failed", "what was written after SIGTERM is not in S3"
    return "confirmed", "what was written after SIGTERM is in S3"


def _check_status(observed: Observations) -> tuple[Verdict, str]:
    if not observed.is_stop_requested or observed.stop_problem is not None:
        return _NOT_REACHED
    if observed.status != "Stopped":
        return "failed", describe_end(observed)
    billed = "" if observed.billable_seconds is None else f", {observed.billable_seconds} s billed"
    return "confirmed", f"the service calls the job Stopped{billed}"


def _check_model(observed: Observations) -> tuple[Verdict, str]:
    if observed.status != "Stopped":
        return _NOT_REACHED
    if not observed.has_model:
        return "failed", "the model of the stopped job is not in S3"
    return "confirmed", "the model of the stopped job is in S3"
