"""share-nothing: plain processes on hosts that do not communicate, each with its own share of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from smlaunch.contract.launch_spec import Arg, Ref
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy

ON_HOST_FAILURE = "on_host_failure"
FAIL, FINISH = "fail", "finish"


class ShareNothing(Strategy):
    name = "share-nothing"
    summary = "starts one plain process per host, each with a share of the data, and hosts do not communicate"
    rendezvous = False
    one_process_by_default = True
    joins_hosts = False
    works_on_shards = True
    has_independent_ranks = True
    options: ClassVar[Mapping[str, str]] = {
        ON_HOST_FAILURE: (
            "fail: the first host that fails ends the job; finish: every shard is a separate job and "
            "retried separately, and the others continue"
        )
    }

    def check(self, context: LaunchContext) -> list[Problem]:
        """Return problems of a job whose hosts work independently."""
        problems = []
        if context.hosts > 1 and not context.has_split_input:
            message = (
                f"none is split, so that {context.hosts} hosts would do the same work {context.hosts} times; "
                "give one split: key or split: bytes"
            )
            problems.append(Problem("inputs", message))
        failure_policy = context.options.get(ON_HOST_FAILURE)
        field = f"options.{ON_HOST_FAILURE}"
        if failure_policy not in (None, FAIL, FINISH):
            problems.append(Problem(field, f"it is {FAIL} or {FINISH}, not {failure_policy!r}"))
        elif failure_policy == FINISH:
            problems += [
                # A job of several containers fails with its first one; nothing inside can change that.
                Problem(
                    f"inputs.{name}.split",
                    f"{ON_HOST_FAILURE}: {FINISH} makes a job for every shard, and the service distributes "
                    f"{name} inside one job; use split: bytes",
                )
                for name, channel in context.channels.items()
                if channel.split == "key"
            ]
        return problems

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        """Position of the process; it gets its files from smlaunch.train.shard_files."""
        variables: list[tuple[str, Arg]] = [
            ("SMLAUNCH_HOST_RANK", Ref("host_rank")),
            ("SMLAUNCH_HOSTS", Ref("hosts")),
        ]
        if context.processes_per_host != 1:
            variables += [("SMLAUNCH_PROCESS", Ref("local_rank")), ("SMLAUNCH_PROCESSES", Ref("per_host"))]
            instance = None if context.target == "local" else context.instance
            if (
                instance is not None
                and instance.accelerators == context.processes_per_host
                and not instance.is_neuron
            ):
                variables.append(("CUDA_VISIBLE_DEVICES", Ref("local_rank")))
        return tuple(variables)
