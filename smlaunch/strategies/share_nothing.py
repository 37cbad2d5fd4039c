"""share-nothing: plain processes on hosts that do not communicate, each with its own share of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from smlaunch.contract.launch_spec import Arg, Ref
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy

ON_HOST_FAILURE = "on_host_failure"
FAIL_WHOLE_JOB, FINISH_OTHER_SHARDS = "fail", "finish"


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

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with a job whose hosts work independently: none of its inputs is split, so
        that each host gets a part of the data, or its option ``on_host_failure`` cannot be obeyed.
        """
        problems: list[Problem] = []
        if context.host_count > 1 and not context.has_split_input:
            message = (
                f"none is split, so that {context.host_count} hosts would do the same work "
                f"{context.host_count} times; give one split: key or split: bytes"
            )
            problems.append(Problem("inputs", message))
        failure_policy = context.options.get(ON_HOST_FAILURE)  # ``fail`` (the whole job) or ``finish``
        field = f"options.{ON_HOST_FAILURE}"
        if failure_policy not in (None, FAIL_WHOLE_JOB, FINISH_OTHER_SHARDS):
            problems.append(
                Problem(field, f"it is {FAIL_WHOLE_JOB} or {FINISH_OTHER_SHARDS}, not {failure_policy!r}")
            )
        elif failure_policy == FINISH_OTHER_SHARDS:  # when one host fails, the others finish their shards
            problems += [
                # A job of several containers fails with its first one; nothing inside can change that.
                Problem(
                    f"inputs.{name}.split",
                    f"{ON_HOST_FAILURE}: {FINISH_OTHER_SHARDS} makes a job for every shard, and the service "
                    f"distributes {name} inside one job; use split: bytes",
                )
                for name, channel in context.channels.items()
                if channel.split == "key"
            ]
        return problems

    def variables(self, context: LaunchContext) -> tuple[tuple[str, Arg], ...]:
        """Return the environment variables that tell a process which part of the data is its own, for
        smlaunch.train.shard_files, and which GPU. A ``Ref`` is a value that each host fills in.
        """
        variables: list[tuple[str, Arg]] = [
            ("SMLAUNCH_HOST_RANK", Ref("host_rank")),
            ("SMLAUNCH_HOSTS", Ref("hosts")),
        ]
        if context.processes_per_host != 1:
            variables += [("SMLAUNCH_PROCESS", Ref("local_rank")), ("SMLAUNCH_PROCESSES", Ref("per_host"))]
            if _has_gpu_for_each_process(context):
                variables.append(("CUDA_VISIBLE_DEVICES", Ref("local_rank")))
        return tuple(variables)


def _has_gpu_for_each_process(context: LaunchContext) -> bool:
    """Return whether hosts have as many GPUs as processes, by the instance type; False for the local
    endpoint, which has others, and for a type that the catalog does not know."""
    instance_spec = context.instance_spec
    if context.target == "local" or instance_spec is None or instance_spec.is_neuron:
        return False
    return instance_spec.accelerators == context.processes_per_host
