"""The part of a machine that decides what follows on a job: ``planning.reconcile``, from the same table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smlaunch.errors import EXIT_LIMIT, EXIT_SERVICE, EXIT_TRAINING_FAILED
from smlaunch.export.asl import (
    Rule,
    all_of,
    any_of,
    catcher,
    choice,
    formatted,
    note,
    parameters,
    pause,
    retrier,
    sum_of,
    task,
    to,
    when,
)
from smlaunch.export.flow import Text
from smlaunch.export.machine_words import (
    AGAIN,
    CLEAR,
    CLEARED,
    DONE,
    EVENTS_PER_JOB,
    HISTORY,
    HOW_FAR,
    LEFT,
    NEXT,
    RESULT,
    SAID,
    Machine,
    finished,
    further,
    kept,
    kind_of,
    looks_at_outcome,
    newer,
    onward,
    own_outcome,
)
from smlaunch.planning.patience import CREATE_PATIENCE
from smlaunch.planning.reconcile import ENDED, IDLE_ENDINGS, OUTCOME_GRACE, STARVED_ENDINGS
from smlaunch.planning.workflow import (
    FAILURE_CLASSES,
    RULES,
    STOP_CLASSES,
    Ending,
    Remedy,
    ending_of,
)
from smlaunch.planning.workflow import (
    Rule as EndingRule,
)
from smlaunch.protocol.checkpoint import CONTINUE, OUTCOME

READ_OUTCOME, NO_OUTCOME, NEWER = "Read the outcome", "No outcome yet", "A newer step?"
PROGRESS, NO_PROGRESS, HOW = "A newer step", "Nothing newer", "How did it end?"
FURTHER, REPORTED = "Was a higher step reported?", "A higher step was reported"
BOTH = "Was it reported too?"
BOTH_NEWER = "A newer step, and reported"
HAD_ITS_TIME, OUTCOME_WAIT, LOOK_AGAIN = "More to train?", "Wait for the outcome", "Look for it again"
HOW_LONG, SO_LONG, AS_LONG, PAUSE = (
    "How long to wait?",
    "So long",
    "As long as it may be",
    "Wait to try again",
)
UNREADABLE = "Outcome cannot be read"

_STATUS, _SECONDARY, _REASON, _MESSAGE = (
    f"$.seen.job.{member}"
    for member in ("TrainingJobStatus", "SecondaryStatus", "FailureReason", "ExitMessage")
)
_OUTCOME_LOOKS = 6


def ending_rules(kind: str = "Training") -> list[tuple[Ending, Rule]]:
    """``planning.workflow.ending_of`` as rules, the first that holds; what none of them takes is
    ``other_failure``. A processing job has no secondary status: whoever stopped it, it is stopped."""
    rules: list[tuple[Ending, Rule]] = []
    for status, classes, member in (
        ("Completed", {}, _SECONDARY),
        ("Stopped", STOP_CLASSES if kind == "Training" else {}, _SECONDARY),
        ("Failed", FAILURE_CLASSES, _REASON),
    ):
        holds = when(f"$.seen.job.{kind}JobStatus", "StringEquals", status)
        for word, ending in classes.items():
            named = when(member, "StringEquals", word)
            if member == _REASON:
                named = any_of(named, when(member, "StringMatches", f"{word}:*"))
            rules.append((ending, all_of(holds, named)))
        plain = ending_of(status, "", "")
        if plain is not None and status != "Failed":
            rules.append((plain, holds))
    return rules


def other_failure() -> Ending:
    return ending_of("Failed", "", "") or Ending.ALGORITHM


class Ends:
    """Entered at ``LEFT``, when a job has ended."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flow = machine.flow
        self._later: list[Callable[[], None]] = []
        self._falls_back = False

    def add(self) -> None:
        looks = looks_at_outcome(self.flow)
        if looks:
            self._outcome()
        self._counts(looks)
        rules = ending_rules(kind_of(self.flow))
        possible = {other_failure(), *(ending for ending, _ in rules)}
        targets = {ending: self._after(ending) for ending in Ending if ending in possible}
        comment = "By its status, its secondary status and the first word of its failure's reason."
        self.machine.add(
            HOW,
            choice(
                comment,
                [to(targets[ending], rule) for ending, rule in rules],
                targets[other_failure()],
            ),
        )
        for write in self._later:
            write()
        self._goes_on()
        self._done()

    @property
    def _goes(self) -> str:
        """Where a run that goes on comes by."""
        return CLEAR if looks_at_outcome(self.flow) else HISTORY

    # ---- outcome.json -------------------------------------------------------------------------------------

    def _place(self) -> dict[str, Any]:
        prefix = self.flow.checkpoints or Text(())
        first, *rest = prefix.words
        bucket, _, key = str(first).removeprefix("s3://").partition("/")
        place = parameters({"Key": Text((key, *rest, OUTCOME))}) if rest else {"Key": key + OUTCOME}
        return {"Bucket": bucket, "ExpectedBucketOwner": self.flow.owner_of(bucket), **place}

    def _outcome(self) -> None:
        flow, add = self.flow, self.machine.add
        missing = ["S3.NoSuchKeyException", "S3.NoSuchKey", "States.IntrinsicFailure"]
        add(
            LEFT,
            task(
                "How far the run is stands in S3, where the job's own sync has put it. One that is cut off "
                "counts as missing.",
                "aws-sdk:s3:getObject",
                self._place(),
                "$.outcome",
                READ_OUTCOME,
                selector={"said.$": "States.StringToJson($.Body)"},
                retry=[retrier(["S3.S3Exception", "S3.SdkClientException"], CREATE_PATIENCE, flow.pace, 5)],
                catch=[
                    catcher(missing, None, NO_OUTCOME),
                    catcher(["States.ALL"], "$.outcome", UNREADABLE),
                ],
            ),
        )
        add(
            READ_OUTCOME,
            note(
                "With a default for each member that it may lack.",
                {"said.$": "States.JsonMerge($.blank.outcome, $.outcome.said, false)"},
                "$.outcome",
                NEWER,
            ),
        )
        add(
            NO_OUTCOME,
            note("Missing means continue.", {"said.$": "$.blank.outcome"}, "$.outcome", NEWER),
        )
        add(
            NEWER,
            choice(
                "What another job of the run has said is not this one's word.",
                [to(BOTH, newer())],
                FURTHER,
            ),
        )
        add(BOTH, choice("What was reported counts too.", [to(BOTH_NEWER, further())], PROGRESS))
        add(
            FURTHER,
            choice(
                "A script that keeps checkpoints of its own may report steps, and commits none.",
                [to(REPORTED, further())],
                NO_PROGRESS,
            ),
        )
        self.machine.fails(
            UNREADABLE,
            EXIT_SERVICE,
            "Whether the run has finished stands in it: to guess would train again.",
            "$.outcome.Cause",
        )

    def _counts(self, looks: bool) -> None:
        """What is kept of this job: where the run is with it, and how many have moved nothing."""
        stays = {"step.$": "$.at.step", "reported.$": "$.at.reported"}
        nothing = {**stays, "tried.$": sum_of("$.at.tried", 1), "newer": False}
        step, reported = {"step.$": f"{SAID}.step"}, {"reported.$": f"{SAID}.reported"}
        ways = {PROGRESS: step, REPORTED: reported, BOTH_NEWER: {**step, **reported}}
        for name, moved in ways.items() if looks else ():
            values = {**stays, **moved, "tried": 0, "newer": True}
            comment = "What was tried before it counts no more."
            self.machine.add(name, note(comment, values, "$.count", HOW))
        name = NO_PROGRESS if looks else LEFT
        self.machine.add(name, note("One more try.", nothing, "$.count", HOW))

    # ---- what follows on each ending ----------------------------------------------------------------------

    def _after(self, ending: Ending) -> str:
        """The first state of what follows; the states themselves are written later, in this order."""
        rule = RULES[ending]
        if ending in IDLE_ENDINGS:
            return self._after_its_time(ending)
        place = len(self._later)
        plain = self._plain(ending, rule)
        spot = any(stage.on_demand is not None for stage in self.flow.stages)
        if ending not in STARVED_ENDINGS or not spot:
            return plain
        name, first = f"{_TITLES[ending]}: was it on spot?", "On demand now"
        was = when("$.seen.job.EnableManagedSpotTraining", "BooleanEquals", True)
        question = choice("On demand, where spot capacity did not come.", [to(first, was)], plain)
        self._later.insert(place, lambda: self.machine.add(name, question))
        self._falls_back = True
        return name

    def _plain(self, ending: Ending, rule: EndingRule) -> str:
        reason = ENDED.get(ending, _REASON)
        if rule.remedy in (Remedy.GIVE_UP, Remedy.ON_DEMAND):
            name = _TITLES[ending]
            self._later.append(lambda: self._fails(name, rule, _COMMENTS[rule.remedy], reason))
            return name
        name, gives_up = f"{_TITLES[ending]}: try again?", f"{_TITLES[ending]}: given up"
        waits = f"{_TITLES[ending]}: waits" if rule.longest_wait else AGAIN
        attempts = self.flow.policy.attempts

        def write() -> None:
            used_up = when("$.count.tried", "NumericGreaterThanEquals", attempts)
            comment = f"{attempts} in all may end without progress ({rule.remedy.value})."
            self.machine.add(name, choice(comment, [to(gives_up, used_up)], waits))
            self._fails(gives_up, rule, "Tried as often as the job allows.", reason)
            if rule.longest_wait:
                self._waits(waits, rule)

        self._later.append(write)
        return name

    def _fails(self, name: str, rule: EndingRule, comment: str, reason: str) -> None:
        told = kept(reason) if looks_at_outcome(self.flow) else reason
        if self.flow.processing:
            # Its exit message says more than its reason does: who failed, and why.
            told = formatted([_REASON, "; exit message: ", _MESSAGE]) if reason == _REASON else _OVER
        self.machine.fails(name, rule.exit_code, comment, told)

    def _waits(self, name: str, rule: EndingRule) -> None:
        """One number for each attempt until they are as long as they may be."""
        seconds: list[int] = []
        while not seconds or rule.wait(len(seconds)) < rule.longest_wait:
            seconds.append(self.flow.seconds(rule.wait(len(seconds) + 1)))
        values = {"seconds": seconds, "longest": seconds[-1], "longest_from": len(seconds)}
        comment = "Seconds after each attempt."
        self.machine.add(name, note(comment, values, "$.wait", HOW_LONG))

    def _after_its_time(self, ending: Ending) -> str:
        policy = self.flow.policy
        if policy.chain:
            if ending is IDLE_ENDINGS[0]:
                self._later.append(self._had_its_time)
            return HAD_ITS_TIME
        if ending is not Ending.COMPLETED:
            name = "Its time was over"
            rule = RULES[ending]
            self._later.append(
                lambda: self._fails(name, rule, "One job, and its limit.", "stopped at its max_runtime")
            )
            return name
        if not looks_at_outcome(self.flow):
            return DONE
        name, early = "Was it to go on?", "It ended itself early"

        def write() -> None:
            said = all_of(own_outcome(), when(f"{SAID}.result", "StringEquals", CONTINUE))
            comment = "A job that was told to leave completes too."
            self.machine.add(name, choice(comment, [to(early, said)], DONE))
            text = formatted(
                ["ended itself before its max_runtime; the newest checkpoint is step ", "$.count.step"]
            )
            self.machine.fails(early, EXIT_LIMIT, "There is no chain that would go on.", text)

        self._later.append(write)
        return name

    def _had_its_time(self) -> None:
        """The last job of a chain went well, or until its limit."""
        flow, add = self.flow, self.machine.add
        went_well = when(_STATUS, "StringEquals", "Completed")
        unknown = [when(f"{SAID}.{member}", "IsNull", True) for member in ("step", "reported")]
        own_files = all_of(own_outcome(), *unknown)
        not_there = [{"Not": own_outcome()}, when("$.job.looks", "NumericLessThan", _OUTCOME_LOOKS)]
        attempts = flow.policy.attempts
        used_up, name = when("$.count.tried", "NumericGreaterThanEquals", attempts), "No progress"
        rules = [
            to(DONE, all_of(went_well, finished())),
            to(NEXT, when("$.count.newer", "BooleanEquals", True)),
            to(NEXT, own_files),
            to(OUTCOME_WAIT, all_of(*not_there)),
            to(name, used_up),
        ]
        comment = (
            "Finished; or further than before; or a script that reports no step, whose files nobody compares "
            f"here. Of {attempts} jobs that came no further, the next one will not either."
        )
        add(HAD_ITS_TIME, choice(comment, rules, AGAIN))
        seconds = flow.seconds(OUTCOME_GRACE / _OUTCOME_LOOKS)
        add(OUTCOME_WAIT, pause("It may still be on its way to S3.", LOOK_AGAIN, seconds=seconds))
        looks = {"name.$": "$.job.name", "fault.$": "$.job.fault", "looks.$": sum_of("$.job.looks", 1)}
        add(LOOK_AGAIN, note(f"{OUTCOME_GRACE:.0f} s in all.", looks, "$.job", LEFT))
        cause = formatted(
            [
                f"no progress: {attempts} jobs until ",
                "$.job.name",
                " came no further than jobs before them",
                *HOW_FAR,
                "; the script begins anew in every job, or saves no checkpoint before a segment's end",
            ]
        )
        self.machine.fails(name, EXIT_TRAINING_FAILED, "Going on would only cost.", cause)

    # ---- going on -----------------------------------------------------------------------------------------

    def _onward(self, comment: str, values: dict[str, Any]) -> dict[str, Any]:
        # What was seen of the job goes only after the outcome has been cleared, which is about it.
        return note(comment, {**values, **self._outcome_kept()}, None, self._goes)

    def _outcome_kept(self) -> dict[str, Any]:
        return {"outcome.$": "$.outcome"} if looks_at_outcome(self.flow) else {}

    def _goes_on(self) -> None:
        flow, add = self.flow, self.machine.add
        again: dict[str, Any] = {"attempt": sum_of("$.at.attempt", 1), "waits": 0}
        if HOW_LONG in self._reached():
            late = when("$.at.attempt", "NumericGreaterThanEqualsPath", "$.wait.longest_from")
            add(HOW_LONG, choice("Longer with every attempt.", [to(AS_LONG, late)], SO_LONG))
            at = f"States.ArrayGetItem($.wait.seconds, {sum_of('$.at.attempt', -1)})"
            add(SO_LONG, note("The first attempt's is the first.", {"now.$": at}, "$.wait", PAUSE))
            add(AS_LONG, note("And no longer.", {"now.$": "$.wait.longest"}, "$.wait", PAUSE))
            add(PAUSE, pause("Before the next attempt.", AGAIN, path="$.wait.now"))
        reached = self._reached()
        if self._falls_back:
            values = onward(flow, EVENTS_PER_JOB, {**_TRIED, **again, "on_demand": True})
            text = "Spot that did not come once is not waited for again in this segment."
            add("On demand now", self._onward(text, values))
        if AGAIN in reached:
            values = onward(flow, EVENTS_PER_JOB, {**_TRIED, **again})
            add(AGAIN, self._onward("The same segment, from the newest checkpoint there is.", values))
        if HAD_ITS_TIME in reached:
            fresh: dict[str, Any] = {
                **_TRIED,
                "tried": 0,
                "segment": sum_of("$.at.segment", 1),
                "attempt": 1,
                "on_demand": False,
                "waits": 0,
            }
            values = onward(flow, EVENTS_PER_JOB, fresh)
            add(NEXT, self._onward("From there; as planned again, on spot too.", values))
        if CLEAR in self._reached():
            self._clear()

    def _clear(self) -> None:
        add = self.machine.add
        closed = all_of(finished(), when(f"{SAID}.closed", "BooleanEquals", True))
        comment = "The training went to its end, and its job failed after it: the next one would do nothing."
        add(CLEAR, choice(comment, [to(CLEARED, closed)], HISTORY))
        retry = [retrier(["S3.S3Exception", "S3.SdkClientException"], CREATE_PATIENCE, self.flow.pace, 5)]
        comment = "So that it trains the rest, and writes its model, again."
        add(CLEARED, task(comment, "aws-sdk:s3:deleteObject", self._place(), None, HISTORY, retry=retry))

    def _reached(self) -> set[str]:
        return {name for state in self.machine.states.values() for name in followers(state)}

    def _done(self) -> None:
        values = {
            "run.$": "$.run",
            "status": "Completed",
            "job.$": "$.job.name",
            "segment.$": "$.at.segment",
            "attempt.$": "$.at.attempt",
        }
        if self.flow.processing:
            first = self.flow.stages[0].template["ProcessingOutputConfig"]["Outputs"][0]
            values |= parameters({"output": first["S3Output"]["S3Uri"]})
        else:
            artifacts = "$.seen.job.ModelArtifacts.S3ModelArtifacts"
            values |= {"step.$": "$.count.step", "model_artifacts.$": artifacts}
        self.machine.add(DONE, note("What whoever started it gets.", values, None, RESULT))
        self.machine.add(RESULT, {"Type": "Succeed"})


_OVER = (
    "its job was stopped, by somebody or at its limits.max_runtime: of a processing job the service does not "
    "say which"
)

_TRIED = {"step": "$.count.step", "reported": "$.count.reported", "tried": "$.count.tried"}

_TITLES = {
    Ending.STARVED: "Spot did not come",
    Ending.STOPPED: "Stopped",
    Ending.CAPACITY: "No capacity",
    Ending.SERVICE: "The service failed",
    Ending.CLIENT: "It cannot work",
    Ending.ALGORITHM: "The script failed",
}

_COMMENTS = {
    Remedy.GIVE_UP: "Another try would end the same.",
    Remedy.ON_DEMAND: "On demand only with on_demand_fallback.",
}


def followers(state: dict[str, Any]) -> list[str]:
    """The states that may come after this one."""
    found = [state[key] for key in ("Next", "Default") if key in state]
    return found + [rule["Next"] for key in ("Choices", "Catch") for rule in state.get(key, [])]
