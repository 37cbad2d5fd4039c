"""mpi: the leader's mpirun starts the ranks of all hosts, through smlaunch's runtime instead of sshd."""

from __future__ import annotations

import shlex

from smlaunch.contract.launch_spec import MPI as LAUNCHER
from smlaunch.contract.launch_spec import Arg, Ref
from smlaunch.errors import Problem
from smlaunch.strategies.base import LaunchContext, Strategy, find_imported_library

MPIRUN_OPTIONS = "mpirun_options"

_RESERVED_OPTIONS = {
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
"""Why the user cannot give an option: Open MPI's and hydra's names of what other fields determine."""


class MPI(Strategy):
    name = "mpi"
    summary = "starts the ranks of all hosts by the leader's mpirun, without an sshd in the image"
    rendezvous = True
    is_multi_host = True
    has_rank_per_core = True
    distributes_records = True
    launcher = LAUNCHER
    libraries = ("mpi4py",)
    options = {MPIRUN_OPTIONS: "arguments of mpirun, a list or one text: --map-by node"}  # noqa: RUF012

    def find_problems(self, context: LaunchContext) -> list[Problem]:
        """Return what is wrong with the arguments for mpirun that the job gives in its options; some are
        reserved, such as the number of ranks, which other fields of the job determine.
        """
        mpirun_arguments, parse_problem = _parse_mpirun_arguments(context)
        if parse_problem:
            return [Problem(f"options.{MPIRUN_OPTIONS}", parse_problem)]
        problems: list[Problem] = []
        for argument in mpirun_arguments:
            reason = _explain_reserved_argument(argument)
            if reason is not None:
                problems.append(Problem(f"options.{MPIRUN_OPTIONS}", f"{argument} cannot be given: {reason}"))
        return problems

    def find_warnings(self, context: LaunchContext) -> list[str]:
        runs_aws_image = context.target == "aws" and "/pytorch" in context.image
        needs_mpi4py = context.entry_point.endswith(".py") and uses_mpi4py(context)
        if runs_aws_image and needs_mpi4py and context.requirements is None:
            # Reported missing there (aws/deep-learning-containers, issue 1968).
            return ["AWS's PyTorch image is not known to contain mpi4py; add it in a requirements file"]
        return []

    def unimported_consequence(self, context: LaunchContext) -> str:
        if context.is_single_process:
            return ""
        return "each rank works separately, and an exception in one of them may leave the others waiting"

    def command(self, context: LaunchContext) -> tuple[Arg, ...]:
        command = context.program_command
        if command[0] == Ref("python") and uses_mpi4py(context):
            # Without it an exception leaves the other ranks in MPI_Finalize, and the job hangs.
            command = (Ref("python"), "-m", "mpi4py", *command[1:])
        return (*command, *context.args, Ref("hyperparameters"))

    def launcher_options(self, context: LaunchContext) -> tuple[Arg, ...]:
        return tuple(_parse_mpirun_arguments(context)[0])


def uses_mpi4py(context: LaunchContext) -> bool:
    return find_imported_library(context.imports, MPI.libraries) is not None


def _explain_reserved_argument(argument: str) -> str | None:
    """Return why a job cannot give this argument of mpirun, since other fields of the job determine what it
    says; None for others.
    """
    if argument == ":":  # mpirun's separator of several programs
        return "one program runs on all ranks; let it branch on its rank"
    # An option, or a parameter of Open MPI: of --mca plm_rsh_agent x the name is an argument of its own.
    if not argument.startswith(("-", "plm")):
        return None
    return _RESERVED_OPTIONS.get(argument.partition("=")[0].lstrip("-"))


def _parse_mpirun_arguments(context: LaunchContext) -> tuple[list[str], str]:
    """Return the arguments for mpirun, which the job gives as a list or as one text, and an empty text; or no
    arguments and what is wrong with the option's value.
    """
    option_value = context.options.get(MPIRUN_OPTIONS, [])
    if isinstance(option_value, list | tuple):
        return [str(argument) for argument in option_value], ""
    if not isinstance(option_value, str):
        return [], f"a list of arguments or one text is needed, not {option_value!r}"
    try:
        return shlex.split(option_value), ""
    except ValueError as error:
        return [], f"{option_value!r} cannot be split into arguments: {error}"
