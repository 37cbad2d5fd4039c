"""mpi: the leader's mpirun starts the ranks of all hosts, by our runtime and not by sshd."""

from __future__ import annotations

import shlex

from smlaunch.errors import Problem
from smlaunch.protocol.launch_spec import MPI as LAUNCHER
from smlaunch.protocol.launch_spec import Ref, Word
from smlaunch.strategies.base import Setting, Strategy, imported, program

OPTION = "mpirun_options"

_OURS = {
    **dict.fromkeys(
        ("np", "n", "c", "ppn", "N", "npernode", "ppr", "perhost", "npersocket"),
        "compute.processes_per_host says how many ranks there are",
    ),
    **dict.fromkeys(
        ("host", "H", "hosts", "hostfile", "machinefile", "default-hostfile", "f", "rankfile", "configfile"),
        "the hosts are the job's",
    ),
    **dict.fromkeys(
        ("launcher", "launcher-exec", "plm_rsh_agent", "plm_ssh_agent", "plm", "bootstrap", "bootstrap-exec"),
        "hosts are reached by smlaunch's own agent",
    ),
}
"""What the user may not say, and why: Open MPI's and hydra's names of what is said elsewhere."""


class MPI(Strategy):
    name = "mpi"
    summary = "starts the ranks of all hosts by the leader's mpirun, without an sshd in the image"
    rendezvous = True
    for_several_hosts = True
    deals_out = True
    launcher = LAUNCHER
    libraries = ("mpi4py",)
    options = {OPTION: "words for mpirun, a list or one text: --map-by node"}  # noqa: RUF012

    def check(self, setting: Setting) -> list[Problem]:
        words, problem = _options(setting)
        if problem:
            return [Problem(f"options.{OPTION}", problem)]
        problems = []
        for word in words:
            name = word.partition("=")[0].lstrip("-")
            why = _OURS.get(name) if word.startswith(("-", "plm")) else None
            if word == ":":
                why = "one program runs on all ranks; let it branch by its rank"
            if why is not None:
                problems.append(Problem(f"options.{OPTION}", f"{word} cannot be given: {why}"))
        return problems

    def advice(self, setting: Setting) -> list[str]:
        of_aws = setting.target == "aws" and "/pytorch" in setting.image
        if of_aws and setting.requirements is None and setting.entry.endswith(".py") and uses_mpi4py(setting):
            # Users found it missing there (aws/deep-learning-containers, issue 1968).
            return ["AWS's PyTorch image is not known to bring mpi4py; name it in a requirements file"]
        return []

    def unimported(self, setting: Setting) -> str:
        if setting.alone:
            return ""
        return (
            "does not import mpi4py: unless a module of its own joins the ranks, each works alone, and an "
            "exception in one of them may leave the others waiting"
        )

    def command(self, setting: Setting) -> tuple[Word, ...]:
        words = program(setting.entry)
        if setting.entry.endswith(".py") and uses_mpi4py(setting):
            # Else an exception leaves the other ranks in MPI_Finalize, and the job hangs.
            words = (Ref("python"), "-m", "mpi4py", *words[1:])
        return (*words, *setting.args, Ref("hyperparameters"))

    def launcher_options(self, setting: Setting) -> tuple[Word, ...]:
        return tuple(_options(setting)[0])


def uses_mpi4py(setting: Setting) -> bool:
    return imported(setting.imports, MPI.libraries) is not None


def _options(setting: Setting) -> tuple[list[str], str]:
    """Each is one word for mpirun, whatever is in it; and what is wrong with them, if anything is."""
    value = setting.options.get(OPTION, [])
    if isinstance(value, list | tuple):
        return [str(word) for word in value], ""
    if not isinstance(value, str):
        return [], f"a list of words or one text is needed, not {value!r}"
    try:
        return shlex.split(value), ""
    except ValueError as error:
        return [], f"{value!r} does not come apart into words: {error}"
