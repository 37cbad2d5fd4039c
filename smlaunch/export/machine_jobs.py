"""The part of a machine that makes one job and waits for its end: how long, under which name, whose, how."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from smlaunch.errors import EXIT_BAD_JOB, EXIT_LIMIT, EXIT_REFUSED, EXIT_SERVICE
from smlaunch.export.asl import (
    JOB_NAME,
    State,
    all_of,
    any_of,
    catcher,
    choice,
    difference_of,
    formatted,
    merged,
    note,
    parameters,
    pause,
    retrier,
    sum_of,
    task,
    to,
    when,
)
from smlaunch.export.flow import NAME, Flow, Stage, Template
from smlaunch.export.machine_words import (
    EVENTS_PER_LOOK,
    EVENTS_PER_WAIT,
    HAND_OVER,
    HISTORY,
    HISTORY_ROOM,
    LEFT,
    LOOK,
    NAME_JOB,
    PARTS_OF_AN_ERROR,
    Machine,
    began,
    caps,
    carried,
    kind_of,
    may_not,
    onward,
)
from smlaunch.planning.patience import CREATE_PATIENCE, QUOTA_PATIENCE, TRANSIENT
from smlaunch.planning.workflow import ending_of

ENDED, WATCH, LOOKED = "Has it ended?", "While it runs", "One more look"
WHOSE, TAGS, COMPARE, OURS = "Was its create answered?", "Read its tags", "Compare", "Is it ours?"
MADE, WAITED = "Was it made?", "One more wait"
QUOTA_WAIT, SERVICE_WAIT = "Wait for the quota", "Wait for the service"
READ, COUNT_TIME = "Read the answer", "Count its time"

WATCH_SECONDS = 120
"""Between two looks at a job whose create was not answered: such a one is rare, and Describe shares the
account's rate."""

LOOK_TRIES = 5

_PREFIX = "SageMaker."
"""Of the names that errors of both integrations have in Step Functions."""


def transient_errors() -> list[str]:
    """As Step Functions writes them; the service's own code with and without its ending."""
    names = {code if code.endswith("Exception") else f"{code}Exception" for code in TRANSIENT}
    return [_PREFIX + name for name in sorted(names)] + [name for name in sorted(names) if "Throttl" in name]


def transient_words() -> list[str]:
    """For errors that come under a common name, with their code in the cause. The shortest of each kind."""
    return [code for code in sorted(TRANSIENT) if not any(o != code and o in code for o in TRANSIENT)]


class Jobs:
    """Enter at ``entry``; a job that has ended leaves to ``following``."""

    following = LEFT

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.flow = machine.flow
        self.kind = kind_of(machine.flow)

    @staticmethod
    def entry(flow: Flow) -> str:
        if len(flow.stages) > 1:
            return "Which variant?"
        return _size_name(flow, 0) if caps(flow) else NAME_JOB

    def add(self) -> None:
        self._choose()
        for index, stage in enumerate(self.flow.stages):
            if caps(self.flow):
                self._size(index, stage)
        self._name()
        for index, stage in enumerate(self.flow.stages):
            self._train(index, stage)
        self._look()
        self._claim()
        self._wait_for_the_end()
        self._not_made()
        self._hand_over()

    # ---- which request, and for how long ------------------------------------------------------------------

    def _choose(self) -> None:
        """As ``planning.workflow.variant_for``, which always knows the step here."""
        stages = self.flow.stages
        if len(stages) == 1:
            return
        rules = []
        for index, (stage, following) in enumerate(pairwise(stages)):
            limit = following.first_segment
            rule = when("$.at.segment", "NumericLessThan", limit)
            if stage.until_step is not None:
                rule = when("$.at.step", "NumericLessThan", stage.until_step)
            rules.append(to(self._after_choice(index), rule))
        comment = "Segments differ: by the step they begin at, or by their number."
        self.machine.add("Which variant?", choice(comment, rules, self._after_choice(len(stages) - 1)))

    def _after_choice(self, index: int) -> str:
        if caps(self.flow):
            return _size_name(self.flow, index)
        return NAME_JOB

    def _size(self, index: int, stage: Stage) -> None:
        """The last job of a run is shorter, and its planned end moves with its limit."""
        flow, counted = self.flow, list(caps(self.flow))
        words = {
            "training": f"its training time of {flow.training} s is used up",
            "billed": f"its max_cost of ${flow.policy.max_cost} is reached",
        }
        names = {"training": "Training time is used up", "billed": "Max cost is reached"}
        rules = [
            to(names[cap], when(f"$.left.{cap}", "NumericLessThan", min(stage.least, stage.max_runtime)))
            for cap in counted
        ]
        whole = _of_stage("A whole segment", flow, index)
        fits = [when(f"$.left.{cap}", "NumericGreaterThanEquals", stage.max_runtime) for cap in counted]
        rules.append(to(whole, all_of(*fits)))
        shorter = {cap: _of_stage(f"What is left of its {_CAP[cap]}", flow, index) for cap in counted}
        if len(counted) > 1:
            rules.append(
                to(
                    shorter["training"],
                    when("$.left.training", "NumericLessThanEqualsPath", "$.left.billed"),
                )
            )
        comment = f"A job is not started for less than {stage.least} s, which its end alone would take."
        self.machine.add(_size_name(flow, index), choice(comment, rules, shorter[counted[-1]]))
        size: dict[str, Any] = {"limit": stage.max_runtime}
        stop = stage.stop_after(stage.max_runtime)
        if stop is not None:
            size["stop_after"] = str(stop)
        self.machine.add(whole, note("As planned.", size, "$.size", NAME_JOB))
        for cap, name in shorter.items():
            left: dict[str, Any] = {"limit.$": f"$.left.{cap}"}
            if stage.margin is not None:
                left["stop_after.$"] = f"States.Format('{{}}', {sum_of(f'$.left.{cap}', -stage.margin)})"
            self.machine.add(name, note("Still ends itself before its limit.", left, "$.size", NAME_JOB))
        for cap in counted:
            if names[cap] not in self.machine.states:
                cause = formatted([f"{words[cap]}; the newest checkpoint told of is step ", "$.at.step"])
                self.machine.fails(names[cap], EXIT_LIMIT, "The run stops at a checkpoint.", cause)

    # ---- the job ------------------------------------------------------------------------------------------

    def _name(self) -> None:
        values = {"name.$": formatted(NAME.words), "fault": {"Error": "", "Cause": ""}, "looks": 0}
        self.machine.add(
            NAME_JOB,
            note(
                "Made here, inside the loop: no two jobs share it, and whoever asks twice finds the first.",
                values,
                "$.job",
                self._first_train(),
            ),
        )
        stages = self.flow.stages
        rules = []
        for index, stage in enumerate(stages):
            later = stages[index + 1] if index + 1 < len(stages) else None
            mine = []
            if later is not None:
                step = stage.until_step
                mine = [
                    when("$.at.step", "NumericLessThan", step)
                    if step is not None
                    else when("$.at.segment", "NumericLessThan", later.first_segment)
                ]
            if stage.on_demand is not None:
                demand = when("$.at.on_demand", "BooleanEquals", True)
                rules.append(to(_train_name(self.flow, index, True), all_of(*mine, demand)))
            if mine:
                rules.append(to(_train_name(self.flow, index, False), all_of(*mine)))
        if rules:
            comment = "Spot until it has not come once in this segment; each variant has its own request."
            last = _train_name(self.flow, len(stages) - 1, False)
            self.machine.add("Which request?", choice(comment, rules, last))

    def _first_train(self) -> str:
        stages = self.flow.stages
        if len(stages) > 1 or stages[0].on_demand is not None:
            return "Which request?"
        return _train_name(self.flow, 0, False)

    def _train(self, index: int, stage: Stage) -> None:
        self.machine.add(_train_name(self.flow, index, False), self._create(stage.template))
        if stage.on_demand is not None:
            self.machine.add(_train_name(self.flow, index, True), self._create(stage.on_demand))

    def _create(self, template: Template) -> State:
        return task(
            "A create that was throttled made no job, and is sent again under the same name. Whatever else "
            "goes wrong, here or in the job, is read from the job itself.",
            f"sagemaker:create{self.kind}Job.sync",
            parameters(template),
            None,
            LOOK,
            retry=[retrier(transient_errors(), CREATE_PATIENCE, self.flow.pace)],
            catch=[catcher(["States.ALL"], "$.job.fault", LOOK)],
        )

    # ---- its end ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self.machine.add(
            LOOK,
            task(
                "What the service says of it; the error that a failed job raises is not the same everywhere.",
                f"aws-sdk:sagemaker:describe{self.kind}Job",
                {f"{self.kind}JobName.$": JOB_NAME},
                "$.seen",
                WHOSE,
                retry=[retrier(["States.ALL"], CREATE_PATIENCE, self.flow.pace, LOOK_TRIES)],
                catch=[catcher(["States.ALL"], "$.unseen", MADE)],
            ),
        )

    def _claim(self) -> None:
        """A name can be taken by an answer that was lost, and by somebody else."""
        add = self.machine.add
        add(
            WHOSE,
            choice(
                "If it was, the job is ours.",
                [to(ENDED, when("$.job.fault.Error", "StringEquals", ""))],
                TAGS,
            ),
        )
        add(
            TAGS,
            task(
                "The job's hash is among them.",
                "aws-sdk:sagemaker:listTags",
                {"ResourceArn.$": f"$.seen.{self.kind}JobArn"},
                "$.tags",
                COMPARE,
                retry=[retrier(["States.ALL"], CREATE_PATIENCE, self.flow.pace, LOOK_TRIES)],
            ),
        )
        ours = {"ours.$": "States.ArrayContains($.tags.Tags, $.blank.tag)"}
        add(COMPARE, note("Of the same job, source and data?", ours, "$.tags", OURS))
        foreign = self.machine.fails
        add(
            OURS,
            choice(
                "A create whose answer was lost made our own job.",
                [to(ENDED, when("$.tags.ours", "BooleanEquals", True))],
                "Another job has the name",
            ),
        )
        foreign(
            "Another job has the name",
            EXIT_BAD_JOB,
            "Never taken for this run's own.",
            formatted(
                [
                    f"the {self.kind.lower()} job ",
                    JOB_NAME,
                    " exists already and was made of another job, source or data; start the execution under "
                    "another name",
                ]
            ),
        )

    def _wait_for_the_end(self) -> None:
        flow, add = self.flow, self.machine.add
        over = [
            when(f"$.seen.{self.kind}JobStatus", "StringEquals", status)
            for status in ("Completed", "Failed", "Stopped")
            if ending_of(status, "", "") is not None
        ]
        add(
            ENDED,
            choice("A job whose create was not answered may still run.", [to(READ, any_of(*over))], WATCH),
        )
        add(WATCH, pause("Looked at seldom.", LOOKED, seconds=flow.seconds(WATCH_SECONDS)))
        more = {"n.$": sum_of("$.events.n", EVENTS_PER_LOOK), "hop.$": "$.events.hop"}
        add(LOOKED, note("A look takes room in the history.", more, "$.events", "Room for a look?"))
        full = when("$.events.n", "NumericGreaterThanEquals", HISTORY_ROOM)
        add(
            "Room for a look?",
            choice("An execution may have 25,000 events.", [to(HAND_OVER, full)], LOOK),
        )
        read = {"job.$": merged("$.blank.job", "$.seen")}
        add(
            READ,
            note(
                "With a default for each member that an answer may lack.",
                read,
                "$.seen",
                COUNT_TIME if caps(flow) else self.following,
            ),
        )
        if caps(flow):
            counted = {"training": "TrainingTimeInSeconds", "billed": "BillableTimeInSeconds"}
            left = {
                f"{cap}.$": difference_of(f"$.left.{cap}", f"$.seen.job.{counted[cap]}") for cap in caps(flow)
            }
            add(COUNT_TIME, note("Failed jobs count too.", left, "$.left", self.following))

    # ---- no job -------------------------------------------------------------------------------------------

    def _not_made(self) -> None:
        machine, fault = self.machine, "$.job.fault"
        quota = when(f"{fault}.Error", "StringMatches", "*ResourceLimitExceeded*")
        waits = int(QUOTA_PATIENCE.total / QUOTA_PATIENCE.longest)
        out_of_patience = when("$.at.waits", "NumericGreaterThanEquals", waits)
        words = [f"*{word}*" for word in transient_words()]
        soon = any_of(
            *(when(f"{fault}.{part}", "StringMatches", word) for part in PARTS_OF_AN_ERROR for word in words)
        )
        answered = when(f"{fault}.Error", "StringEquals", "")
        nothing_in_use = when(f"{fault}.Cause", "StringMatches", "*with current utilization of 0 *")
        machine.add(
            MADE,
            choice(
                "There is no such job: the request was refused, for now or for good. A quota that others "
                "hold is waited for; one of which nothing is in use is too small.",
                [
                    to("Quota is too small", all_of(quota, nothing_in_use)),
                    to("May not look", may_not("$.unseen")),
                    to("No answer for too long", all_of(any_of(quota, soon, answered), out_of_patience)),
                    to(QUOTA_WAIT, quota),
                    to(SERVICE_WAIT, any_of(soon, answered)),
                    to("May not create", may_not(fault)),
                ],
                "Request is refused",
            ),
        )
        for name, patience in ((QUOTA_WAIT, QUOTA_PATIENCE), (SERVICE_WAIT, CREATE_PATIENCE)):
            seconds = self.flow.seconds(patience.longest)
            machine.add(name, pause(f"{waits} times at most.", WAITED, seconds=seconds))
        values = onward(self.flow, EVENTS_PER_WAIT, {"waits": sum_of("$.at.waits", 1)})
        machine.add(WAITED, note("The same job again, under the same name.", values, None, HISTORY))
        cause = f"{fault}.Cause"
        machine.fails("Quota is too small", EXIT_REFUSED, "Waiting would not help.", cause)
        machine.fails("May not look", EXIT_REFUSED, "See permissions.json.", "$.unseen.Cause")
        machine.fails("May not create", EXIT_REFUSED, "Of the machine's role: permissions.json.", cause)
        machine.fails("Request is refused", EXIT_BAD_JOB, "By the service, in its own words.", cause)
        machine.fails(
            "No answer for too long",
            EXIT_SERVICE,
            "A new execution under the same name goes on from here.",
            formatted(["no job could be made or seen: ", cause, "; ", "$.unseen.Cause"]),
        )

    def _hand_over(self) -> None:
        machine, flow = self.machine, self.flow
        full = when("$.events.n", "NumericGreaterThanEquals", HISTORY_ROOM)
        comment = "An execution may have 25,000 events; before it has, another one goes on."
        machine.add(HISTORY, choice(comment, [to(HAND_OVER, full)], Jobs.entry(flow)))
        state = {"run.$": "$.run", "at.$": "$.at", **carried(flow), "hop.$": "$.events.hop"}
        machine.add(
            HAND_OVER,
            task(
                "Waits for it, so that whoever waits for this execution waits for the run.",
                "states:startExecution.sync:2",
                {
                    "StateMachineArn.$": "$$.StateMachine.Id",
                    "Name.$": formatted(["$.run", "-part-", "$.events.hop"]),
                    "Input": {
                        "AWS_STEP_FUNCTIONS_STARTED_BY_EXECUTION_ID.$": "$$.Execution.Id",
                        "smlaunch": state,
                    },
                },
                "$.rest",
                "The rest went well",
                catch=[catcher(["States.ALL"], "$.rest", "Did the rest begin?")],
            ),
        )
        machine.add(
            "The rest went well",
            {"Type": "Succeed", "Comment": "With its result.", "OutputPath": "$.rest.Output"},
        )
        machine.add(
            "Did the rest begin?",
            choice(
                "A failed execution is told as JSON, a start that was refused in words.",
                [to("How the rest ended", began("$.rest")), to("May not go on", may_not("$.rest"))],
                "Cannot go on",
            ),
        )
        machine.fails("May not go on", EXIT_REFUSED, "See permissions.json: GoOn.", "$.rest.Cause")
        machine.fails("Cannot go on", EXIT_SERVICE, "In the service's words.", "$.rest.Cause")
        machine.add(
            "How the rest ended",
            note(
                "As JSON.",
                {"told.$": merged("$.blank.execution", "States.StringToJson($.rest.Cause)")},
                "$.rest",
                "The rest has failed",
            ),
        )
        machine.add(
            "The rest has failed",
            {
                "Type": "Fail",
                "Comment": "As the execution that went on.",
                "ErrorPath": "$.rest.told.Error",
                "CausePath": "$.rest.told.Cause",
            },
        )


_CAP = {"training": "time", "billed": "money"}


def _of_stage(name: str, flow: Flow, index: int) -> str:
    return name if len(flow.stages) == 1 else f"{name} ({index + 1})"


def _size_name(flow: Flow, index: int) -> str:
    return _of_stage("How long?", flow, index)


def _train_name(flow: Flow, index: int, on_demand: bool) -> str:
    if flow.processing:
        return _of_stage("Process", flow, index)
    return _of_stage("Train on demand" if on_demand else "Train", flow, index)
