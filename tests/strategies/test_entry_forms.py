"""A script, a module and a command compile to what each strategy starts."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.contract.launch_spec import RUNTIME, TORCHRUN, Arg, Ref
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import ScriptFacts, SourceFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan import job_hashes
from tests.planner.fixtures import plan, region
from tests.strategies.launch_specs import spec_of
from tests.tables import table

PYTHON, VALUES = Ref("python"), Ref("hyperparameters")
MODULE = {"module": "trainer.task"}
COMMAND = {"command": ["python", "tool.py", "--x", "1"]}
SHELL = {"command": ["bash", "run.sh"]}
FILES = {"trainer.task": "trainer/task.py", "python": "tool.py", "bash": "run.sh", "make": "make"}


def facts_of(entry: dict[str, Any], imports: str = "torch.distributed") -> Any:
    file = FILES[entry.get("module") or entry["command"][0]]
    script = ScriptFacts(imports=frozenset({imports, imports.partition(".")[0]}))
    return region(source=SourceFacts(".", file, "ab" * 32, 3, 300), script=script)


STARTED: list[tuple[dict[str, Any], str, str, tuple[Arg, ...]]] = [
    (
        {"entry": MODULE, "args": ["--x", "1"]},
        "ddp",
        RUNTIME,
        (PYTHON, "-m", "trainer.task", "--x", "1", VALUES),
    ),
    ({"entry": MODULE, "launcher": "torchrun"}, "ddp", TORCHRUN, (PYTHON, "-m", "trainer.task", VALUES)),
    ({"entry": COMMAND}, "ddp", RUNTIME, ("python", "tool.py", "--x", "1", VALUES)),
    ({"entry": COMMAND, "launcher": "torchrun"}, "ddp", TORCHRUN, ("python", "tool.py", "--x", "1", VALUES)),
    ({"entry": SHELL}, "custom", RUNTIME, ("bash", "run.sh", VALUES)),
    ({"entry": SHELL, "strategy": "ddp"}, "ddp", RUNTIME, ("bash", "run.sh", VALUES)),
    ({"entry": {"command": ["make", "train"]}}, "custom", RUNTIME, ("make", "train", VALUES)),
    (
        {"entry": MODULE, "strategy": "deepspeed"},
        "deepspeed",
        RUNTIME,
        (PYTHON, "-m", "trainer.task", VALUES),
    ),
]


@table(("job", "strategy", "launcher", "argv"), STARTED)
def test_what_every_rank_is(job: dict[str, Any], strategy: str, launcher: str, argv: tuple[Arg, ...]) -> None:
    compute = {"hosts": 2, "processes_per_host": 1 if strategy == "custom" else 2}
    started = plan({"compute": compute, **job}, facts_of(job["entry"]))
    ranks = spec_of(started).ranks
    assert (started.strategy, ranks.launcher, ranks.argv) == (strategy, launcher, argv)


def test_mpi_runs_a_module_so_that_an_exception_ends_all_ranks() -> None:
    job = {"entry": MODULE, "compute": {"hosts": 2}}
    ranks = spec_of(plan(job, facts_of(MODULE, "mpi4py.MPI"))).ranks
    assert ranks.argv == (PYTHON, "-m", "mpi4py", "-m", "trainer.task", VALUES)
    command = {"entry": COMMAND, "compute": {"hosts": 2}}
    assert spec_of(plan(command, facts_of(COMMAND, "mpi4py.MPI"))).ranks.argv[0] == "python"


def test_ray_runs_a_module_as_its_driver() -> None:
    ranks = spec_of(plan({"entry": MODULE, "compute": {"hosts": 2}}, facts_of(MODULE, "ray"))).ranks
    assert ranks.argv[-4:] == (PYTHON, "-m", "trainer.task", VALUES)


@pytest.mark.parametrize("entry", [MODULE, COMMAND], ids=["module", "command"])
def test_spark_names_what_it_can_start(entry: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="entry: spark-submit starts a script, not a module or a command"):
        plan({"entry": entry, "strategy": "spark"}, facts_of(entry))


def test_another_program_is_another_job() -> None:
    """The hash of a script is that of earlier releases (tests/formats)."""
    entries: list[Any] = [MODULE, COMMAND, SHELL, {"command": ["python", "tool.py", "--x", "2"]}]
    source = region()
    hashes = [job_hashes(Job(entry=entry), source).complete for entry in [*entries, "src/train.py"]]
    assert len(set(hashes)) == len(hashes)
    assert job_hashes(Job(entry="elsewhere/train.py"), source).complete == hashes[-1]
