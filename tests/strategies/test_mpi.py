"""``strategy: mpi``: the request, the command, and the options for mpirun."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.contract.launch_spec import ALL, MPI, Ref
from smlaunch.facts.discovered_facts import ScriptFacts, SourceFacts
from smlaunch.render.plan import Plan
from tests.planner.fixtures import local, plan, region
from tests.strategies.launch_specs import SHELL, spec_of
from tests.strategies.requests import documented_request, plan_job, refusals, request_of
from tests.tables import table

MPI4PY = ScriptFacts(imports=frozenset({"mpi4py", "mpi4py.MPI", "numpy"}))
IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.13.0-cpu-amzn2023-sagemaker"
COMPUTE = {"hosts": 2, "processes_per_host": 4, "instance_type": "ml.m5.xlarge"}
SCRIPT = Ref("source", suffix="/train.py")
PROGRAM = SourceFacts("src", "sum", "ab" * 32, file_count=1, bytes=40_321)


def plan_mpi(facts: ScriptFacts = MPI4PY, **job: Any) -> Plan:
    source = job.pop("source", None)
    world = region(script=facts) if source is None else region(script=facts, source=source)
    return plan_job({"compute": COMPUTE, **job}, world)


def test_a_script_that_imports_mpi4py_is_its() -> None:
    plan = plan_mpi()
    assert plan.strategy == "mpi"
    assert request_of(plan) == documented_request(IMAGE, "ml.m5.xlarge", 2)
    assert [upload.kind for upload in plan.uploads].count("secret") == 1


def test_what_is_started() -> None:
    ranks = spec_of(plan_mpi(args=["--fast"])).ranks
    # python -m mpi4py ends all ranks upon an exception in one; else they wait for it for ever.
    assert ranks.argv == (Ref("python"), "-m", "mpi4py", SCRIPT, "--fast", Ref("hyperparameters"))
    assert (ranks.launcher, ranks.runs_on, ranks.per_host, ranks.rendezvous) == (MPI, ALL, 4, True)
    assert ranks.launcher_options == ()


@pytest.mark.parametrize(
    ("source", "facts", "program"),
    [
        (None, ScriptFacts(imports=frozenset({"numpy"})), (Ref("python"), SCRIPT)),
        (PROGRAM, ScriptFacts(), (Ref("source", suffix="/sum"),)),
        (SHELL, ScriptFacts(), ("bash", Ref("source", suffix="/train.sh"))),
    ],
)
def test_any_other_program_as_it_is(source: SourceFacts | None, facts: ScriptFacts, program: Any) -> None:
    entry = "src/" + (source.entry if source else "train.py")
    plan = plan_mpi(facts, strategy="mpi", entry=entry, source=source)
    assert spec_of(plan).ranks.argv == (*program, Ref("hyperparameters"))
    is_warned = any("does not import mpi4py" in line for line in plan.warnings)
    assert is_warned == (source is None)


@pytest.mark.parametrize(
    ("options_text", "launcher_options"),
    [
        ("--map-by node -x 'NAME=a b; $HOME'", ("--map-by", "node", "-x", "NAME=a b; $HOME")),
        (["--bind-to", "core"], ("--bind-to", "core")),
        (["--mca", "btl_base_verbose", 30], ("--mca", "btl_base_verbose", "30")),
        ("", ()),
    ],
)
def test_the_users_words(options_text: Any, launcher_options: tuple[str, ...]) -> None:
    assert (
        spec_of(plan_mpi(options={"mpirun_options": options_text})).ranks.launcher_options == launcher_options
    )


def test_an_image_that_may_lack_mpi4py() -> None:
    message = "AWS's PyTorch image is not known to contain mpi4py; add it in a requirements file."
    job = {"strategy": "mpi", "compute": COMPUTE}
    assert message in plan(job, region(script=MPI4PY)).warnings
    assert message not in plan(job, local(script=MPI4PY)).warnings
    assert (
        message
        not in plan(
            {**job, "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"}, region(script=MPI4PY)
        ).warnings
    )


@table(
    ("options_text", "message"),
    [
        ("-np 8", "-np cannot be given: compute.processes_per_host says how many ranks there are"),
        ("--np=8", "--np=8 cannot be given: compute.processes_per_host says how many ranks there are"),
        (["--host=a,b"], "--host=a,b cannot be given: the hosts are the job's"),
        (["--hostfile", "hosts"], "--hostfile cannot be given: the hosts are the job's"),
        ("-launcher-exec ssh", "-launcher-exec cannot be given: hosts are reached by smlaunch's own agent"),
        (
            "--mca plm_rsh_agent ssh",
            "plm_rsh_agent cannot be given: hosts are reached by smlaunch's own agent",
        ),
        (
            "python other.py : python",
            ": cannot be given: one program runs on all ranks; let it branch on its rank",
        ),
        ("--map-by 'node", '"--map-by \'node" cannot be split into arguments: No closing quotation'),
        ({"map-by": "node"}, "a list of arguments or one text is needed, not {'map-by': 'node'}"),
    ],
)
def test_words_that_say_what_the_job_says_elsewhere(options_text: Any, message: str) -> None:
    messages = refusals(
        {"compute": COMPUTE, "options": {"mpirun_options": options_text}}, region(script=MPI4PY)
    )
    assert messages == [f"options.mpirun_options: {message}"]


@pytest.mark.parametrize(
    ("instance_types", "environment", "rank_count"),
    [
        (["ml.c5.18xlarge"], {}, 36),
        (["ml.c5.18xlarge"], {"OMP_NUM_THREADS": "4"}, 9),
        (["ml.c5.18xlarge"], {"OMP_NUM_THREADS": "64"}, 1),
        (["ml.c5.18xlarge"], {"OMP_NUM_THREADS": "many"}, 36),
        (["ml.c5.18xlarge", "ml.c5.9xlarge"], {}, 18),
        (["ml.g5.12xlarge"], {}, 4),
    ],
)
def test_every_core_of_hosts_without_accelerators_gets_a_rank(
    instance_types: list[str], environment: dict[str, str], rank_count: int
) -> None:
    compute = {"hosts": 2, "instance_preferences": instance_types}
    plan = plan_mpi(compute=compute, environment=environment)
    assert plan.processes_per_host == rank_count
    assert spec_of(plan).ranks.per_host == rank_count


def test_horovod_and_hosts_of_this_machine_get_one_rank() -> None:
    compute = {"hosts": 2, "instance_type": "ml.c5.18xlarge"}
    horovod = ScriptFacts(imports=frozenset({"horovod.torch", "horovod", "torch"}))
    assert plan_mpi(horovod, compute=compute).processes_per_host == 1
    assert plan_job({"compute": compute}, local(script=MPI4PY)).processes_per_host == 1
