"""share-nothing: plain processes on hosts that never talk, each with its own part of the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import Ref, Word
from smlaunch.strategies.base import Setting, Strategy

ON_HOST_FAILURE = "on_host_failure"
FAIL, FINISH = "fail", "finish"


class ShareNothing(Strategy):
    name = "share-nothing"
    summary = "starts one plain process per host, each with a part of the data, and no host needs another"
    rendezvous = False
    one_unless_asked = True
    joins_hosts = False
    by_parts = True
    options: ClassVar[Mapping[str, str]] = {
        ON_HOST_FAILURE: "fail: the first host that fails ends the job; finish: every part is a job of its "
        "own, is tried again alone, and the others go on"
    }

    def check(self, setting: Setting) -> list[Problem]:
        problems = []
        if setting.hosts > 1 and not setting.split:
            told = (
                f"none is split, so that {setting.hosts} hosts would do the same work {setting.hosts} times; "
                "give one split: key or split: bytes"
            )
            problems.append(Problem("inputs", told))
        policy = setting.options.get(ON_HOST_FAILURE)
        where = f"options.{ON_HOST_FAILURE}"
        if policy not in (None, FAIL, FINISH):
            problems.append(Problem(where, f"it is {FAIL} or {FINISH}, not {policy!r}"))
        elif policy == FINISH:
            problems += [
                # A job of several containers fails with the first of them: nothing inside it can change that.
                Problem(
                    f"inputs.{name}.split",
                    f"{ON_HOST_FAILURE}: {FINISH} makes a job for every part, and the service deals {name} "
                    "out inside one job; use split: bytes",
                )
                for name, channel in setting.channels.items()
                if channel.split == "key"
            ]
        return problems

    def variables(self, setting: Setting) -> tuple[tuple[str, Word], ...]:
        """What a process is told of its place; its files it asks for (smlaunch.train.part_files)."""
        words: list[tuple[str, Word]] = [
            ("SMLAUNCH_HOST_RANK", Ref("host_rank")),
            ("SMLAUNCH_HOSTS", Ref("hosts")),
        ]
        if setting.per_host != 1:
            words += [("SMLAUNCH_PROCESS", Ref("local_rank")), ("SMLAUNCH_PROCESSES", Ref("per_host"))]
            instance = None if setting.target == "local" else setting.instance
            if instance is not None and instance.accelerators == setting.per_host and not instance.is_neuron:
                words.append(("CUDA_VISIBLE_DEVICES", Ref("local_rank")))
        return tuple(words)
