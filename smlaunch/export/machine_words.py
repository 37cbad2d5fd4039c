"""What the states of a machine have in common: their names, what they keep, what its history may hold."""

from __future__ import annotations

from typing import Any

from smlaunch.errors import EXIT_STOPPED
from smlaunch.export.asl import Rule, State, all_of, any_of, fail, formatted, sum_of, when
from smlaunch.export.flow import ERRORS, Flow
from smlaunch.protocol.checkpoint import FINISHED, VERSION
from smlaunch.protocol.names import TAG_JOB

BEGIN, FIRST, TAKE_OVER = "Begin", "First job", "Take over"
NAME_JOB, LOOK, HISTORY, HAND_OVER = "Name the job", "Look at the job", "Room in the history?", "Hand over"
NEXT, AGAIN = "Next segment", "Again"
CLEAR, CLEARED = "Finished, and failed after it?", "Clear the outcome"
DONE, RESULT = "Done", "Result"
LEFT = "What it left"

STOPPED = {"Error": ERRORS[EXIT_STOPPED], "Cause": "its execution was stopped"}
"""What the end of an execution that was stopped does not say."""

NO_REASON = "the service gave no reason"

HISTORY_LIMIT = 25_000
"""Events of one execution, after which it fails (Step Functions quotas)."""

HISTORY_ROOM = 20_000
"""From so many events on, as counted here, another execution goes on."""

EVENTS_PER_JOB = 600
EVENTS_PER_LOOK = 100
EVENTS_PER_WAIT = 250
"""More than a job, one more look at it, or one more wait for it to be made can bring with it, retries too; a
test adds them up from the definition."""


FIRST_AT = {
    "segment": 1,
    "attempt": 1,
    "step": 0,
    "reported": 0,
    "on_demand": False,
    "tried": 0,
    "waits": 0,
}
"""``step``: the newest committed one that was told of; ``reported``: the highest in progress lines.
``tried``: jobs since one of these moved. ``waits``: how often this job was asked for in vain."""


def kind_of(flow: Flow) -> str:
    """Of its jobs, as the API's names have it: ``Create<kind>Job``, ``<kind>JobStatus``."""
    return "Processing" if flow.processing else "Training"


class Machine:
    """The states made so far, in order."""

    def __init__(self, flow: Flow, name: str) -> None:
        self.flow = flow
        self.name = name
        self.states: dict[str, State] = {}

    def add(self, first: str, state: State, *more: tuple[str, State]) -> None:
        for name, one in ((first, state), *more):
            if name in self.states:
                raise ValueError(f"two states are called {name!r}")
            self.states[name] = one

    def fails(self, name: str, exit_code: int, comment: str, cause: str) -> str:
        self.add(name, fail(comment, ERRORS[exit_code], cause))
        return name


def caps(flow: Flow) -> dict[str, int]:
    """Seconds that are left at first, by what counts them."""
    both = {"training": flow.training, "billed": flow.billed}
    return {name: seconds for name, seconds in both.items() if seconds is not None}


def uncapped(flow: Flow) -> dict[str, Any]:
    return {"left": caps(flow)} if caps(flow) else {}


def carried(flow: Flow, root: str = "$") -> dict[str, Any]:
    left = {"left.$": f"{root}.left"} if caps(flow) else {}
    return {**left, **({"part.$": f"{root}.part"} if flow.parts else {})}


def onward(flow: Flow, events: int, changes: dict[str, Any]) -> dict[str, Any]:
    """All that is kept for what comes next: what was seen of a job goes. ``changes``: members of ``at``, as
    values or as paths and functions."""
    at: dict[str, Any] = {}
    for key in FIRST_AT:
        value = changes.get(key, f"$.at.{key}")
        at[f"{key}.$" if isinstance(value, str) else key] = value
    return {
        "run.$": "$.run",
        "at": at,
        **carried(flow),
        "events": {"n.$": sum_of("$.events.n", events), "hop.$": "$.events.hop"},
        "blank.$": "$.blank",
    }


def blanks(flow: Flow) -> dict[str, Any]:
    """What stands for a member that an answer lacks: a path to nothing would end the execution."""
    of_training = {
        "FailureReason": NO_REASON,
        "SecondaryStatus": "",
        "TrainingTimeInSeconds": 0,
        "BillableTimeInSeconds": 0,
        "EnableManagedSpotTraining": False,
        "ModelArtifacts": {"S3ModelArtifacts": ""},
    }
    of_processing = {"FailureReason": NO_REASON, "ExitMessage": "none"}
    blank: dict[str, Any] = {
        "job": of_processing if flow.processing else of_training,
        "execution": STOPPED,
        "tag": {"Key": TAG_JOB, "Value": flow.workflow.job_hash},
    }
    if looks_at_outcome(flow):
        blank["outcome"] = {
            "version": "",
            "result": "",
            "step": None,
            "run": None,
            "job": None,
            "closed": False,
            "reported": None,
            "repeats": False,
        }
    return blank


def looks_at_outcome(flow: Flow) -> bool:
    """A single job ends as it does; others say in S3 how far they came."""
    return flow.checkpoints is not None and not flow.workflow.single


# ---- what outcome.json says -----------------------------------------------------------------------------

SAID = "$.outcome.said"


def _readable() -> Rule:
    return when(f"{SAID}.version", "StringMatches", VERSION.split(".")[0] + ".*")


def own_outcome() -> Rule:
    """It is this job's word. Another one's says nothing: this one's is missing then."""
    return all_of(_readable(), when(f"{SAID}.job", "StringEqualsPath", "$.job.name"))


def finished() -> Rule:
    """Any job of this run has said so."""
    ours = any_of(
        when(f"{SAID}.run", "IsNull", True),
        all_of(when(f"{SAID}.run", "IsString", True), when(f"{SAID}.run", "StringEqualsPath", "$.run")),
    )
    return all_of(_readable(), when(f"{SAID}.result", "StringEquals", FINISHED), ours)


def newer() -> Rule:
    return all_of(
        own_outcome(),
        when(f"{SAID}.step", "IsNumeric", True),
        when(f"{SAID}.step", "NumericGreaterThanPath", "$.at.step"),
    )


def further() -> Rule:
    """More steps were reported than by any job before, and not by going through most of those again."""
    return all_of(
        own_outcome(),
        when(f"{SAID}.reported", "IsNumeric", True),
        when(f"{SAID}.reported", "NumericGreaterThanPath", "$.at.reported"),
        when(f"{SAID}.repeats", "BooleanEquals", False),
    )


# ---- what an error says ---------------------------------------------------------------------------------

PARTS_OF_AN_ERROR = ("Error", "Cause")


def may_not(error: str) -> Rule:
    """The machine's role has not the right: under whatever name, in whatever words. ``error``: its path."""
    words = ("*AccessDenied*", "*not authorized*")
    return any_of(
        *(when(f"{error}.{part}", "StringMatches", word) for part in PARTS_OF_AN_ERROR for word in words)
    )


def began(error: str) -> Rule:
    """Of an execution that was waited for: one that ended badly is told as JSON, a start that was refused in
    words."""
    return when(f"{error}.Cause", "StringMatches", "{*")


def kept(words: str) -> str:
    """A sentence about how the run ended, and how far it had come."""
    return formatted([words, *HOW_FAR])


HOW_FAR = (
    "; the newest checkpoint told of is step ",
    "$.count.step",
    ", the highest step reported ",
    "$.count.reported",
)
