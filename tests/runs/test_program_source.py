"""Which folder is the source of a script, a module or a command, and what of it is sent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import SourceFacts
from smlaunch.job.model import Job
from smlaunch.runs import source_archive
from smlaunch.runs.plan_job import pack_job_source, plan
from smlaunch.runs.source_tree import SourceEntry, SourceTree
from tests.runs.fakes import ROLE, fake_target
from tests.tables import table


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package, a script, a shell script, data and requirements, which is the current one."""
    folder = tmp_path / "project"
    for name in (
        "trainer/__init__.py",
        "trainer/task.py",
        "app/__main__.py",
        "tool.py",
        "run.sh",
        "data/a.csv",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {name}\n")
    monkeypatch.chdir(folder)
    return folder


def facts_of(**job: Any) -> SourceFacts:
    return pack_job_source(Job(**job))[0]


ENTRIES: list[tuple[Any, str]] = [
    ({"module": "trainer.task"}, "trainer/task.py"),
    ({"module": "app"}, "app/__main__.py"),
    ({"command": ["python", "-u", "-W", "error", "tool.py", "--x"]}, "tool.py"),
    ({"command": ["python3.11", "-m", "trainer.task"]}, "trainer/task.py"),
    ({"command": ["/bin/bash", "run.sh"]}, "run.sh"),
    ({"command": ["bash", "-c", "true"]}, "bash"),
    ({"command": ["python", "-c", "pass", "tool.py"]}, "python"),
    ({"command": ["python", "/opt/program.py"]}, "python"),
    ({"command": ["torchrun", "--nproc_per_node=2", "tool.py"]}, "tool.py"),
    ({"command": ["make", "train"]}, "make"),
    ({"command": ["./run.sh"]}, "run.sh"),
]


@table(("entry", "file"), ENTRIES)
def test_the_programs_file_is_found(project: Path, entry: Any, file: str) -> None:
    facts = facts_of(entry=entry)
    assert (facts.entry, facts.root, facts.problem) == (file, ".", None)
    assert facts.file_count == 6


MISSING: list[tuple[Any, str]] = [
    (
        {"module": "trainer.tsk"},
        "entry: there is no module trainer.tsk in this folder, .* did you mean 'trainer.task'",
    ),
    ({"module": "trainer"}, "entry: trainer is a package without __main__.py; name a module in it"),
    (
        {"module": "torch.distributed.run"},
        r"\(for an installed module: the command python -m torch.distributed.run\)",
    ),
    ({"command": ["python", "tol.py"]}, "entry: tol.py does not exist in /.*, did you mean 'tool.py'"),
    ({"script": "data/a.csv"}, "entry.script: 'data/a.csv' is no program"),
    ({"command": ["./data/a.csv"]}, "entry: data/a.csv is no program: it is neither a .py or .sh script nor"),
    ({"command": ["bash", "rum.sh"]}, "entry: rum.sh does not exist in /.*, did you mean 'run.sh'"),
    ({"command": ["python", "../other.py"]}, "source: ../other.py is outside of the source folder ."),
]


@table(("entry", "message"), MISSING)
def test_a_program_that_is_not_there_is_named(project: Path, entry: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        plan(Job(entry=entry, role=ROLE), fake_target())


def test_a_file_that_a_command_gives_to_an_interpreter_needs_no_suffix(project: Path) -> None:
    Path("start").write_text("python tool.py\n")
    job_plan = plan(Job(entry={"command": ["bash", "start"]}, role=ROLE), fake_target())
    assert (job_plan.strategy, job_plan.facts.source.entry) == ("custom", "start")


def test_hosts_that_each_run_a_shell_script_are_told(project: Path) -> None:
    def warns() -> bool:
        job = Job(entry={"command": ["bash", "run.sh"]}, role=ROLE, compute={"hosts": 2})
        return any("the 2 hosts does the whole work" in line for line in plan(job, fake_target()).warnings)

    assert warns()
    Path("run.sh").write_text(
        'torchrun --nnodes 2 --rdzv_endpoint "$(echo $SM_HOSTS | cut -d, -f1)" tool.py\n'
    )
    assert not warns()


LAUNCHERS: list[tuple[str, str | None]] = [
    ("# torchrun x.py\ndeepspeed train.py --deepspeed $@\n", "run.sh:2 starts deepspeed for one host"),
    ("cd src && exec torchrun \\\n  --nproc_per_node 2 train.py\n", "run.sh:1 starts torchrun for one host"),
    ("python3 -m torch.distributed.launch --nproc_per_node=2 a.py\n", "run.sh:1 starts python3 -m torch"),
    ("torchrun \\\n  --nnodes 2 \\\n  train.py\n", "run.sh:1 starts torchrun with the same --node_rank on"),
    ("accelerate launch --num_machines 2 a.py\n", "run.sh:1 starts accelerate launch with the same --mac"),
    ("torchrun --nproc_per_node 2 --rdzv-endpoint $(first $SM_HOSTS) train.py\n", None),
    ("echo deepspeed.\npython train.py --launcher deepspeed\n", None),
]


@table(("text", "message"), LAUNCHERS)
def test_a_shell_script_that_launches_for_one_host(project: Path, text: str, message: str | None) -> None:
    Path("run.sh").write_text(text)
    job = Job(entry="run.sh", role=ROLE, compute={"hosts": 2})
    if message is None:
        assert plan(job, fake_target()).strategy == "custom"
        return
    with pytest.raises(JobError) as caught:
        plan(job, fake_target())
    (problem,) = caught.value.problems
    assert problem.message.startswith(message)
    assert problem.change == "--hosts 1"
    assert plan(job.with_changes(compute={"hosts": 1}), fake_target()).strategy == "custom"


def test_requirements_beside_the_program_are_installed_unless_the_job_says_otherwise(project: Path) -> None:
    assert facts_of(entry="tool.py").default_requirements is None
    Path("requirements.txt").write_text("numpy\n")
    Path("trainer/requirements.txt").write_text("numpy\n")
    Path("app/dev.txt").write_text("numpy\n")
    expected = {
        "tool.py": "requirements.txt",
        "trainer.task": "trainer/requirements.txt",
        "app": "requirements.txt",
    }
    assert {
        name: facts_of(entry=name if name.endswith(".py") else {"module": name}).default_requirements
        for name in expected
    } == expected

    def installed(**job: Any) -> tuple[str | None, list[str]]:
        job_plan = plan(Job(entry="tool.py", role=ROLE, **job), fake_target())
        (task,) = job_plan.planned_jobs
        assert task.launch_spec is not None
        reported = [reason.rule for reason in job_plan.reasons if "requirements" in reason.rule]
        reported += [line for line in job_plan.warnings if "requirements" in line]
        return task.launch_spec.requirements, reported

    assert installed() == ("requirements.txt", ["requirements.beside-program"])
    assert installed(requirements="app/dev.txt") == ("app/dev.txt", [])
    assert installed(requirements="none") == (None, [])
    file, (warning,) = installed(network_isolation=True)
    assert (file, "requirements.txt is not installed" in warning) == (None, True)


def test_an_input_inside_the_source_is_not_part_of_it(project: Path) -> None:
    os.symlink("data", "link")
    Path("lists").mkdir()
    Path("lists/one.txt").write_text("a.csv\n")
    job = Job(
        entry="tool.py", inputs={"train": "data", "names": "lists/one.txt", "all": ".", "code": "tool.py"}
    )
    facts, archive = pack_job_source(job)
    assert archive is not None
    assert facts.input_paths == {"train": "data", "names": "lists/one.txt"}
    assert not [name for name in archive.files if name.startswith(("data/", "lists/"))]
    assert "tool.py" in archive.files
    job_plan = plan(job.with_changes(role=ROLE, inputs={"train": "data"}), fake_target())
    (reason,) = [reason for reason in job_plan.reasons if reason.rule == "source.inputs"]
    assert "data is the input train" in reason.explanation
    assert "SM_CHANNEL_TRAIN" in reason.explanation


def test_sizes_are_known_before_anything_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("data/large.bin").open("wb") as file:
        file.truncate(source_archive.LIMIT_BYTES + 1)  # sparse: it takes no room on the disk
    reads: list[str] = []
    read_content = source_archive.SourceTree.read_content

    def record(tree: SourceTree, entry: SourceEntry) -> bytes | None:
        reads.append(entry.relative_path)
        return read_content(tree, entry)

    monkeypatch.setattr(source_archive.SourceTree, "read_content", record)
    facts = facts_of(entry="tool.py")
    assert facts.problem is not None
    assert "largest: data 500.0 MB in 2 files" in facts.problem
    assert "--input data=data" in facts.problem
    assert reads == []
    assert facts_of(entry="tool.py", inputs={"data": "data"}).problem is None
    assert "tool.py" in reads
    assert not [name for name in reads if name.startswith("data/")]
