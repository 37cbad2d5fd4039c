"""What a plan reports about a script by its source: arguments, channels, ranks, packages, saved files."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest

from smlaunch.contract.launch_spec import Concat, LaunchSpec, Ref
from smlaunch.discovery.program_files import find_program_file
from smlaunch.discovery.python_packages import find_missing_packages
from smlaunch.discovery.script_analysis import missing_path_text, read_script_facts
from smlaunch.discovery.script_program import read_program
from smlaunch.discovery.source_modules import read_source_program
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import InputFacts
from smlaunch.job.model import Job
from smlaunch.render.plan import Plan
from smlaunch.text.home_folder import expand_home
from tests.planner.fixtures import local, make_plan, region
from tests.tables import table

PARSER = """
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("data", nargs="?", default="data")
parser.add_argument("--epochs", "-e", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=3)
parser.add_argument("--lr", type=float)
parser.add_argument("--opt", choices=["sgd", "adam"])
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
args = parser.parse_args()
"""
REQUIRED = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("epochs", type=int)
parser.add_argument("every", type=int)
parser.add_argument("--out", required=True)
parser.add_argument("--batch-size", type=int)
args = parser.parse_args()
"""
KNOWN = PARSER.replace("parser.parse_args()", "parser.parse_known_args()")
UNCERTAIN_POSITION = PARSER.replace("args = parser", "if x: parser.add_argument('out')\nargs = parser")
MANY_CHOICES = PARSER.replace(
    "args = parser", "parser.add_argument('--seed', type=int, choices=range(2000))\nargs = parser"
)
DYNAMIC = PARSER.replace(
    "args = parser", "for name in open('names'): parser.add_argument('--' + name)\nargs = parser"
)
SUBCOMMANDS = PARSER.replace(
    "args = parser",
    "one = parser.add_subparsers().add_parser('one')\none.add_argument('--needed', required=True)\n"
    "args = parser",
)
OTHERS = PARSER.replace("args = parser", "other.add_arguments(parser)\nargs = parser")
OWN_LIST = PARSER.replace("parse_args()", "parse_args(['--epochs', '1'])")
CHANGED = PARSER.replace("args = parser", "import sys; sys.argv.remove('--x')\nargs = parser")
TWO = PARSER + "second = argparse.ArgumentParser()\n"
MAYBE = PARSER.replace("args = parser.parse_args()", "if interactive: args = parser.parse_args()")
HF = "from transformers import HfArgumentParser\nHfArgumentParser((A, B)).parse_args_into_dataclasses()\n"
CLICK = "import click\n@click.command()\n@click.option('--lr')\ndef main(lr): pass\nmain()\n"


def plan_of(folder: Path, text: str, job: dict[str, Any] | None = None, **modules: str) -> Plan:
    """The plan of ``train.py`` with the text, and modules beside it by their names, on this machine."""
    for name, module_text in {"train": text, **modules}.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(module_text), encoding="utf-8")
    entry = folder / "train.py"
    script = read_script_facts(entry)._replace(program=read_program(read_source_program(entry, folder)))
    mapping = {"entry": str(entry), **(job or {})}
    facts = local(
        script=script,
        inputs={name: InputFacts("s3://b/d/", "s3") for name in mapping.get("inputs", {})},
    )
    return make_plan(Job.from_mapping(mapping), facts, "digits")


def problems_of(folder: Path, text: str, job: dict[str, Any] | None = None, **modules: str) -> list[str]:
    try:
        plan_of(folder, text, job, **modules)
    except JobError as error:
        return [f"{problem.path}: {problem.message}" for problem in error.problems]
    return []


def spec_of(plan: Plan) -> LaunchSpec:
    spec = plan.planned_jobs[0].launch_spec
    assert spec is not None
    return spec


def words_of(plan: Plan) -> list[str]:
    """The script's arguments; what only a host knows in angle brackets."""
    words = []
    for arg in spec_of(plan).ranks.argv[2:]:
        parts = arg.parts if isinstance(arg, Concat) else (arg,)
        words.append("".join(f"<{part.name}>" if isinstance(part, Ref) else part for part in parts))
    return words


@table(
    ("text", "job", "expected"),
    [
        (PARSER, {}, []),
        (PARSER, {"hyperparameters": {"epochs": 3, "lr": "1e-3", "opt": "adam"}}, []),
        (PARSER, {"args": ["--epochs", "3", "folder", "-e", "4", "--batch", "7"]}, []),
        (PARSER, {"args": ["--lr", "-0.1", "--amp", "--no-amp", "--no-cuda"]}, []),
        (PARSER, {"hyperparameters": {"epoch": 3}}, []),  # argparse accepts the abbreviation
        (
            PARSER.replace("ArgumentParser()", "ArgumentParser(allow_abbrev=False)"),
            {"hyperparameters": {"epoch": 3}},
            ["hyperparameters.epoch: the script has no argument --epoch (train.py:11), did you mean"],
        ),
        (
            PARSER,
            {"args": ["--epohcs=3"]},
            ["args: the script has no argument --epohcs (train.py:11), did you"],
        ),
        (PARSER, {"args": ["a", "b"]}, ["args: the script takes no further argument 'b' (train.py:11)"]),
        (
            PARSER,
            {"args": ["--nproc_per_node", "2"]},
            ["smlaunch's own option for it is --processes-per-host"],
        ),
        (PARSER, {"args": ["--nnodes=2"]}, ["smlaunch's own option for it is --hosts"]),
        (PARSER, {"args": ["--node-rank", "0"]}, ["smlaunch sets it, leave it out"]),
        (
            PARSER,
            {"hyperparameters": {"epochs": "many"}},
            [
                "hyperparameters.epochs: the script rejects its arguments: "
                "argument --epochs/-e: invalid int value: 'many' (train.py:5)"
            ],
        ),
        (PARSER, {"hyperparameters": {"epochs": 1.5}}, ["invalid int value: '1.5'"]),
        (PARSER, {"args": ["--opt", "lamb"]}, ["argument --opt: invalid choice: 'lamb'"]),
        (PARSER, {"args": ["--lr"]}, ["argument --lr: expected one argument"]),
        (
            PARSER,
            {"args": ["--wrong", "1", "--epochs", "x"]},
            ["no argument --wrong", "invalid int value: 'x'"],
        ),
        (PARSER, {"hyperparameters": {"no-cuda": True}}, []),
        (PARSER, {"hyperparameters": {"no-cuda": "false", "amp": "true"}}, []),
        (
            PARSER,
            {"hyperparameters": {"no-cuda": "yes"}},
            ["hyperparameters.no-cuda: --no-cuda takes no value"],
        ),
        (
            PARSER,
            {"hyperparameters": {"no_cuda": True}},
            ["no argument --no_cuda (train.py:11), did you mean '--no-cuda'"],
        ),
        (PARSER, {"args": ["-h"]}, []),
        (REQUIRED, {"args": ["50", "10", "--out", "x"]}, []),
        (REQUIRED, {"args": ["50", "--out", "x", "--batch-size", "32", "10"]}, []),
        (REQUIRED, {}, ["the following arguments are required: epochs, every", "required: --out"]),
        (
            REQUIRED,
            {"args": ["50", "--wrong"]},
            ["required: every", "no argument --wrong", "required: --out"],
        ),
        (
            REQUIRED,
            {"args": ["50", "10"]},
            ["args: the script rejects its arguments: the following arguments are required: --out"],
        ),
        (KNOWN, {"args": ["--wrong", "1"]}, []),
        (KNOWN, {"args": ["--epochs", "1", "--lr", "0.5", "--seed", "1"]}, []),
        (UNCERTAIN_POSITION, {}, []),
        (MANY_CHOICES, {"hyperparameters": {"seed": 1500}}, []),
        (PARSER.replace("Parser()", "Parser(add_help=False)"), {"args": ["-h"]}, ["no argument -h"]),
        (KNOWN, {"args": ["--epochs", "x"]}, ["invalid int value"]),
        (DYNAMIC, {"args": ["--wrong", "1"]}, []),
        (SUBCOMMANDS, {"args": ["--wrong", "1"]}, []),
        (OTHERS, {"args": ["--wrong", "1"]}, []),
        (OTHERS, {"hyperparameters": {"no-cuda": True}}, []),
        (OWN_LIST, {"args": ["--wrong", "1"]}, []),
        (CHANGED, {"args": ["--wrong", "1"]}, []),
        (TWO, {"args": ["--wrong", "1"]}, []),
        (HF, {"args": ["--wrong", "1"]}, []),
        (CLICK, {"args": ["--wrong", "1"]}, []),
    ],
)
def test_arguments_that_argparse_will_reject(
    text: str, job: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    problems = problems_of(tmp_path, text, job)
    assert len(problems) == len(expected), problems
    for problem, words in zip(problems, expected, strict=True):
        assert words in problem
        assert problem.endswith(("--allow script.arguments)", "--allow script.flag)"))


def test_a_parser_that_may_not_be_used_gives_a_warning(tmp_path: Path) -> None:
    warnings = plan_of(tmp_path, MAYBE, {"args": ["--wrong", "1"]}).warnings
    assert any("no argument --wrong" in warning for warning in warnings)


def test_a_rule_that_the_job_allows_gives_a_warning(tmp_path: Path) -> None:
    warnings = plan_of(tmp_path, PARSER, {"args": ["--wrong", "1"], "allow": ["script.arguments"]}).warnings
    assert any(
        "no argument --wrong" in warning and "(allowed: script.arguments)" in warning for warning in warnings
    )


def test_only_rules_that_may_be_wrong_can_be_allowed(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, PARSER, {"allow": ["script.argument"]})
    assert problem.startswith("allow: no such rule: 'script.argument', did you mean 'script.arguments'?")


def test_the_parser_of_an_imported_module_counts(tmp_path: Path) -> None:
    entry = "import options\nargs = options.get_args()\n"
    module = (
        "import argparse\ndef get_args():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--lr')\n    return p.parse_args()\n"
    )
    assert problems_of(tmp_path, entry, {"args": ["--lr", "1"]}, options=module) == []
    (problem,) = problems_of(tmp_path, entry, {"args": ["--rl", "1"]}, options=module)
    assert "no argument --rl (options.py:5)" in problem


def test_arguments_that_a_function_of_another_module_adds_are_known(tmp_path: Path) -> None:
    entry = (
        "import argparse, common\np = argparse.ArgumentParser()\ncommon.add_args(p)\nargs = p.parse_args()\n"
    )
    module = "def add_args(parser):\n    parser.add_argument('--lr')\n"
    assert problems_of(tmp_path, entry, {"args": ["--lr", "1"]}, common=module) == []
    (problem,) = problems_of(tmp_path, entry, {"args": ["--rl", "1"]}, common=module)
    assert "no argument --rl (train.py:4)" in problem


@table(
    ("hyperparameters", "expected"),
    [
        ({"no-cuda": True, "lr": 1}, ["--lr", "1", "--no-cuda"]),
        ({"no-cuda": "true"}, ["--no-cuda"]),
        ({"no-cuda": "False"}, []),
        ({"amp": False}, ["--no-amp"]),
        ({"amp": True}, ["--amp"]),
    ],
)
def test_a_flag_reaches_the_script_alone(
    hyperparameters: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    from smlaunch.runtime.hyperparameters import decode_hyperparameters

    plan = plan_of(tmp_path, PARSER, {"hyperparameters": hyperparameters})
    decoded = decode_hyperparameters(plan.requests[0]["HyperParameters"])
    assert decoded._replace(flags=dict(spec_of(plan).ranks.flags)).to_args() == expected


# ---- ranks ------------------------------------------------------------------------------------------------

LOCAL_RANK = """
import argparse, torch
import torch.distributed
p = argparse.ArgumentParser()
p.add_argument("--local-rank", "--local_rank", type=int)
args = p.parse_args()
torch.distributed.init_process_group("gloo")
"""
SPAWN = """
import os, torch
import torch.multiprocessing as mp
from torch.distributed import init_process_group
def run(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    init_process_group("gloo", rank=rank, world_size=world_size)
if __name__ == "__main__":
    mp.spawn(run, args=(2,), nprocs=2)
"""
SPAWN_NODES = """
import argparse, os, torch
import torch.multiprocessing as mp
import torch.distributed as dist
def run(gpu, args):
    rank = args.nr * args.gpus + gpu
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=args.world_size)
parser = argparse.ArgumentParser()
parser.add_argument("-n", "--nodes", default=1, type=int)
parser.add_argument("-g", "--gpus", default=1, type=int)
parser.add_argument("-nr", "--nr", default=0, type=int)
parser.add_argument("--master_addr", default="localhost")
parser.add_argument("--master_port", default="1234")
args = parser.parse_args()
os.environ["MASTER_ADDR"] = args.master_addr
mp.spawn(run, nprocs=args.gpus, args=(args,))
"""
SPAWN_SELF_AWARE = SPAWN.replace('    os.environ["MASTER_ADDR"] = "localhost"\n', "").replace(
    "    mp.spawn", '    if "RANK" not in os.environ: mp.spawn'
)
IMAGENET = Path(__file__).parent.parent / "ordinary" / "scripts" / "06_imagenet_spawn" / "main.py"
ADDRESS = """
import os, torch
import torch.distributed as dist
os.environ["MASTER_ADDR"] = "127.0.0.1"
os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("gloo")
"""
ALONE = ADDRESS.replace('"127.0.0.1"', '"127.0.0.1"; os.environ["WORLD_SIZE"] = "1"')
GUARDED = ADDRESS.replace(
    'os.environ["MASTER_ADDR"]', "if 'MASTER_ADDR' not in os.environ: os.environ[\"MASTER_ADDR\"]"
)
LIGHTNING = "import lightning as L\nL.Trainer(devices={}, num_nodes={}).fit(m)\n"
LIGHTNING_PLAIN = "import lightning as L\nL.Trainer(max_epochs=1).fit(m)\n"
LIGHTNING_COMPUTED = "import os, lightning as L\nL.Trainer(num_nodes=int(os.environ['N'])).fit(m)\n"
LIGHTNING_CLI = "from lightning.pytorch.cli import LightningCLI\nLightningCLI(A, B)\n"
LIGHTNING_OPTIONS = """
import argparse, lightning as L
parser = argparse.ArgumentParser()
parser.add_argument("-n", "--num-nodes", type=int, default=1)
parser.add_argument("--gpus", default=1, dest="devices")
{}
"""
TRAINER = LIGHTNING_OPTIONS.format(
    "args = parser.parse_args()\nL.Trainer(devices=args.devices, num_nodes=args.num_nodes).fit(m)"
)
TRAINERS = {  # the ways in which an option reaches the Trainer
    "unknown arguments": "args, _ = parser.parse_known_args()\nL.Trainer(num_nodes=args.num_nodes).fit(m)",
    "variable": "a = parser.parse_args()\nn = int(a.num_nodes)\nL.Trainer(num_nodes=n).fit(m)",
    "vars": "c = vars(parser.parse_args())\nL.Trainer(num_nodes=c['num_nodes']).fit(m)",
    "function": "def main(c):\n  L.Trainer(num_nodes=c.num_nodes).fit(m)\nmain(parser.parse_args())",
    "parameter": "def main(n):\n  L.Trainer(num_nodes=n).fit(m)\nargs = parser.parse_args()\n"
    "main(n=args.num_nodes)",
    "getter": "def get():\n  return parser.parse_args()\na = get()\nL.Trainer(num_nodes=a.num_nodes).fit(m)",
    "attribute": "class X:\n  def fit(self):\n    L.Trainer(num_nodes=self.args.num_nodes).fit(m)\n"
    "X(parser.parse_args()).fit()",
}
GROUP_OPTIONS = """
import argparse, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_world", type=int, default=1)
parser.add_argument("--id", type=int, default=0)
parser.add_argument("--size", type=int, default=1)
args = parser.parse_args()
dist.init_process_group("gloo", rank=args.id, world_size=args.size)
"""


def hosts(count: int, processes: int | None = None, **job: Any) -> dict[str, Any]:
    compute = {"hosts": count} if processes is None else {"hosts": count, "processes_per_host": processes}
    return {"compute": compute, **job}


@table(
    ("text", "job", "processes", "words"),
    [
        (LOCAL_RANK, hosts(2, 2), 2, ["--local-rank=<local_rank>"]),
        (LOCAL_RANK, hosts(1), 1, ["--local-rank=<local_rank>"]),
        (LOCAL_RANK, hosts(2, args=["--local_rank", "0"]), 1, ["--local_rank", "0"]),
        (SPAWN, hosts(1), 1, []),
        (SPAWN_SELF_AWARE, hosts(2, 2), 2, []),
        (
            SPAWN_NODES,
            hosts(2),
            1,
            ["--master_addr=<leader>", "--master_port=<port>", "--nr=<host_rank>", "--nodes=<hosts>"],
        ),
        (
            SPAWN_NODES,
            hosts(2, args=["-g", "2"]),
            1,
            [
                "--master_addr=<leader>",
                "--master_port=<port>",
                "--nr=<host_rank>",
                "--nodes=<hosts>",
                "-g",
                "2",
            ],
        ),
        (
            IMAGENET.read_text(),
            hosts(2, args=["--multiprocessing-distributed"]),
            1,
            ["--dist-backend=gloo", "--dist-url=env://", "--multiprocessing-distributed"],
        ),
        (IMAGENET.read_text(), hosts(2, 2), 2, ["--dist-backend=gloo", "--dist-url=env://"]),
        (IMAGENET.read_text(), hosts(1), 1, []),
        (LIGHTNING.format(2, 2), hosts(2), 2, []),
        (LIGHTNING.format("[0, 1, 2]", 2), hosts(2), 3, []),
        (LIGHTNING.format(-1, 2), hosts(2), 1, []),
        (LIGHTNING_PLAIN, hosts(1), 1, []),
        (LIGHTNING_COMPUTED, hosts(3), 1, []),
        (LIGHTNING.format(2, 1), hosts(1, 2), 2, []),
        (
            LIGHTNING_CLI,
            hosts(2, args=["fit"]),
            1,
            ["fit", "--trainer.num_nodes=<hosts>", "--trainer.devices=<per_host>"],
        ),
        (
            LIGHTNING_CLI,
            hosts(2, args=["fit", "--trainer.num_nodes", "2", "--trainer.devices=1"]),
            1,
            ["fit", "--trainer.num_nodes", "2", "--trainer.devices=1"],
        ),
        (LIGHTNING_CLI, hosts(1, args=["fit"]), 1, ["fit"]),
        (TRAINER, hosts(2), 1, ["--num-nodes=<hosts>"]),
        (TRAINER, hosts(1), 1, []),
        (TRAINER, hosts(2, 2), 2, ["--num-nodes=<hosts>", "--gpus=<per_host>"]),
        (TRAINER.replace("default=1, dest", "default=2, dest"), hosts(2), 2, ["--num-nodes=<hosts>"]),
        (TRAINER, hosts(2, args=["-n", "2", "--gpus=0,1"]), 2, ["-n", "2", "--gpus=0,1"]),
        (TRAINER, hosts(2, hyperparameters={"num-nodes": 2}), 1, []),
        (TRAINER.replace("args.num_nodes", "3 * args.num_nodes"), hosts(2), 1, []),
        (
            TRAINER.replace("args = parser.parse_args()", "parser.parse_args()\nargs = load()"),
            hosts(2),
            1,
            [],
        ),
        *((LIGHTNING_OPTIONS.format(way), hosts(2), 1, ["--num-nodes=<hosts>"]) for way in TRAINERS.values()),
        (GROUP_OPTIONS, hosts(2, 2), 2, ["--id=<rank>", "--size=<world_size>"]),
        (GROUP_OPTIONS, hosts(1), 1, []),
        (GROUP_OPTIONS + "import os; os.environ['RANK']", hosts(2), 1, ["--size=<world_size>"]),
        (ADDRESS, hosts(1, 2), 2, []),
        (GUARDED, hosts(2, 2), 2, []),
    ],
)
def test_a_script_for_another_launcher_gets_what_that_would_pass(
    text: str, job: dict[str, Any], processes: int, words: list[str], tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, text, job)
    assert plan.processes_per_host == processes
    assert [word for word in words_of(plan) if word != "<hyperparameters>"] == words
    assert spec_of(plan).ranks.rendezvous


@table(
    ("text", "job", "expected"),
    [
        (
            SPAWN,
            hosts(2),
            [
                "compute.hosts: train.py:10 starts the ranks of one host by mp.spawn, and train.py:6 sets "
                "os.environ['MASTER_ADDR'] = 'localhost': 2 hosts would train separately; use --hosts 1"
            ],
        ),
        (
            SPAWN.replace('    os.environ["MASTER_ADDR"] = "localhost"\n', ""),
            hosts(2),
            ["it takes no number of a host"],
        ),
        (
            SPAWN,
            hosts(1, 2),
            ["compute.processes_per_host: train.py:10 starts the ranks of its host by mp.spawn: 2 such"],
        ),
        (SPAWN_NODES, hosts(2, args=["--nr", "0"]), ["args: --nr: every host would have the same number"]),
        (SPAWN_NODES, hosts(2, args=["--nodes", "4"]), ["args: --nodes 4, and there are 2 hosts"]),
        (
            SPAWN_NODES,
            hosts(2, args=["--master_addr=127.0.0.1"]),
            ["--master_addr 127.0.0.1 is each host itself"],
        ),
        (
            IMAGENET.read_text(),
            hosts(
                2,
                args=[
                    "--multiprocessing-distributed",
                    "--rank",
                    "0",
                    "--world-size",
                    "1",
                    "--dist-url",
                    "tcp://127.0.0.1:1234",
                ],
            ),
            [
                "--rank: every host",
                "--world-size 1, and there are 2",
                "--dist-url tcp://127.0.0.1:1234 is each host itself",
            ],
        ),
        (
            IMAGENET.read_text(),
            hosts(2, args=["--dist-url", "tcp://localhost:1"]),
            ["--dist-url tcp://localhost:1 is each host"],
        ),
        (
            ADDRESS,
            hosts(2),
            [
                "entry: train.py:4: os.environ['MASTER_ADDR'] = '127.0.0.1' replaces the MASTER_ADDR that "
                "smlaunch gives each rank, so that they would not train together; "
                "write os.environ.setdefault(\"MASTER_ADDR\", '127.0.0.1')"
            ],
        ),
        (ALONE, hosts(1, 2), ["entry: train.py:4: os.environ['WORLD_SIZE'] = '1' replaces the WORLD_SIZE"]),
        (
            LIGHTNING.format(2, 2),
            hosts(1),
            [
                "compute.hosts: train.py:2: Trainer has num_nodes=2, and there is 1 host; use "
                "--hosts 2, or write num_nodes=1 there"
            ],
        ),
        (LIGHTNING_PLAIN, hosts(2), ["Trainer has no num_nodes, which means 1, and there are 2 hosts"]),
        (
            LIGHTNING.format(2, 1),
            hosts(1, 4),
            ["compute.processes_per_host: train.py:2: Trainer has devices=2, and there are 4 ranks"],
        ),
        (
            LIGHTNING_CLI,
            hosts(2, 2, args=["fit", "--trainer.num_nodes", "1", "--trainer.devices=4"]),
            [
                "args: --trainer.num_nodes 1, and there are 2 hosts",
                "--trainer.devices 4, and there are 2 ranks",
            ],
        ),
        (
            LIGHTNING_CLI,
            hosts(2, hyperparameters={"trainer.num_nodes": 4}),
            ["hyperparameters.trainer.num_nodes: --trainer.num_nodes 4, and there are 2 hosts"],
        ),
        (TRAINER, hosts(2, args=["-n", "1"]), ["args: --num-nodes 1, and there are 2 hosts; leave it out"]),
        (
            TRAINER,
            hosts(2, hyperparameters={"num-nodes": 4}),
            ["hyperparameters.num-nodes: --num-nodes 4, and there are 2 hosts"],
        ),
        (TRAINER, hosts(2, 2, args=["--gpus", "4"]), ["args: --gpus 4, and there are 2 ranks per host"]),
        (
            GROUP_OPTIONS,
            hosts(2, args=["--id=0", "--size=1"]),
            ["args: --id: every rank would have the same", "args: --size 1, and there are 2 ranks"],
        ),
    ],
)
def test_what_would_train_separately_is_refused(
    text: str, job: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    problems = problems_of(tmp_path, text, job)
    assert len(problems) == len(expected), problems
    for problem, words in zip(problems, expected, strict=True):
        assert words in problem


@pytest.mark.parametrize(
    ("text", "job"),
    [
        (ADDRESS, hosts(2)),
        (
            ADDRESS.replace('("gloo")', '("gloo", init_method="tcp://localhost:23456")').replace(
                "os.environ[", "dict()["
            ),
            hosts(2),
        ),
        (ALONE, hosts(1, 2)),
        (LIGHTNING_PLAIN, hosts(2)),
        ("import lightning as L\nL.Trainer(\n    max_epochs=1,  # few\n).fit(m)\n", hosts(2)),
        ("import lightning as L\nL.Trainer(\n    max_epochs=1\n).fit(m)\n", hosts(2)),
        ("import lightning as L\nL.Trainer().fit(m)\n", hosts(2)),
        ("import lightning as L\nL.Trainer().fit(m)\n", hosts(1, 2)),
    ],
)
def test_the_stated_change_of_a_line_is_enough(text: str, job: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        plan_of(tmp_path, text, job)
    lines = text.splitlines()
    for problem in caught.value.problems:
        file, number, line = problem.change.split(":", 2)
        assert file == "train.py"
        lines[int(number) - 1] = line.removeprefix(" ")
    assert problems_of(tmp_path, "\n".join(lines), job) == []


@table(
    ("text", "job", "change"),
    [
        (SPAWN, hosts(2), "--hosts 1"),
        (LIGHTNING.format(2, 2), hosts(1), "--hosts 2"),
        (LIGHTNING.format(2, 1), hosts(1, 4), "--processes-per-host 2"),
        ("import sklearn.svm\n", hosts(2), "--hosts 1"),
    ],
)
def test_an_option_is_the_stated_change(text: str, job: dict[str, Any], change: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        plan_of(tmp_path, text, job)
    assert [problem.change for problem in caught.value.problems] == [change]


def test_all_arguments_that_may_stay_are_one_change(tmp_path: Path) -> None:
    args = [
        "-a",
        "resnet18",
        "--rank",
        "0",
        "--world-size=1",
        "--dist-url",
        "tcp://localhost:1",
        "--epochs",
        "1",
    ]
    job = hosts(2, args=[*args, "--multiprocessing-distributed", "my data"])
    with pytest.raises(JobError) as caught:
        plan_of(tmp_path, IMAGENET.read_text(), job)
    changes = [problem.change for problem in caught.value.problems]
    assert changes == ["-- -a resnet18 --epochs 1 --multiprocessing-distributed 'my data'", "", ""]
    changed = {**job, "args": shlex.split(changes[0])[1:]}
    assert problems_of(tmp_path, IMAGENET.read_text(), changed) == []


NCCL = "import torch\ntorch.distributed.init_process_group({})\n"


@table(
    ("text", "job", "expected"),
    [
        (NCCL.format('"nccl"'), hosts(2), "entry: train.py:2: the backend nccl needs GPUs"),
        (NCCL.format("backend='nccl'"), hosts(1, 2), "entry: train.py:2: the backend nccl needs GPUs"),
        (NCCL.format('"gloo"'), hosts(2), ""),
        (NCCL.format('"nccl" if torch.cuda.is_available() else "gloo"'), hosts(2), ""),
        (NCCL.replace("torch.dist", "if x: torch.dist").format('"nccl"'), hosts(2), ""),
        (
            IMAGENET.read_text(),
            hosts(2, args=["--dist-backend", "nccl"]),
            "args: --dist-backend nccl needs GPUs",
        ),
    ],
)
def test_nccl_needs_gpus(text: str, job: dict[str, Any], expected: str, tmp_path: Path) -> None:
    problems = problems_of(tmp_path, text, job)
    assert (expected in problems[0]) if expected else problems == []


DEVICE = "import torch\nfrom torch import nn\ndevice = {}\nmodel = nn.Linear(1, 1).to(device)\n"


@table(
    ("text", "expected"),
    [
        (
            "import torch\ntorch.cuda.set_device(0)\nfor x in y:\n    x = x.cuda()\n",
            "entry: train.py:2 (torch.cuda.set_device), train.py:4 (.cuda) need a GPU, and",
        ),
        ("import torch\nm = torch.nn.Linear(1, 1).cuda()\n", "entry: train.py:2 (.cuda) needs a GPU, and"),
        (
            "import torch\nx = torch.zeros(1, device='cuda:0')\n",
            "entry: train.py:2 (torch.zeros) needs",
        ),
        ("import torch\nx = torch.zeros(1).to(f'cuda:{rank}')\n", "entry: train.py:2 (.to) needs a GPU"),
        (DEVICE.format("'cuda'"), "entry: train.py:4 (.to) needs a GPU"),
        (DEVICE.format("torch.device('cuda')"), "entry: train.py:4 (.to) needs a GPU"),
        (DEVICE.format("'cuda' if torch.cuda.is_available() else 'cpu'"), ""),
        (DEVICE.format("'cpu'"), ""),
        (DEVICE.format("'cpu'\nif torch.cuda.is_available():\n    device = 'cuda'"), ""),
        ("import torch\nif torch.cuda.is_available():\n    x.cuda()\n", ""),
        ("import torch\nuse = torch.cuda.is_available()\nm = x.cuda() if use else x\n", ""),
        ("import torch\ntry:\n    x.cuda()\nexcept RuntimeError:\n    pass\n", ""),
        ("import torch, sys\nif not torch.cuda.is_available():\n    sys.exit()\nx.cuda()\n", ""),
        ("import torch\ndef unused(x):\n    return x.cuda()\n", ""),
        ("import torch\nclass Batch:\n    def cuda(self): return self\nBatch().cuda()\n", ""),
        ("import torch\ntorch.cuda.manual_seed(1)\ntorch.cuda.empty_cache()\n", ""),
        ("import torch\ndef move(x, device):\n    return x.to(device)\nmove(y, 'cpu')\n", ""),
        ("import other\nx.cuda()\n", ""),
    ],
)
def test_all_lines_that_need_a_gpu_at_once(text: str, expected: str, tmp_path: Path) -> None:
    problems = problems_of(tmp_path, text)
    assert problems[0].startswith(expected) if expected else problems == []


def test_nccl_and_other_lines_that_need_a_gpu_at_once(tmp_path: Path) -> None:
    text = "import torch\ntorch.distributed.init_process_group('nccl')\nm = torch.nn.Linear(1, 1).cuda()\n"
    problems = problems_of(tmp_path, text, hosts(2))
    assert [problem.partition(" (")[0].partition(": the")[0] for problem in problems] == [
        "entry: train.py:3",
        "entry: train.py:2",
    ]
    assert problems_of(tmp_path, text, {**hosts(2), "allow": ["script.backend"]}) == []


@table(
    ("text", "count", "is_warned"),
    [
        ("import tensorflow as tf\ntf.keras.Sequential().fit(x)", 2, True),
        ("import tensorflow as tf\ntf.keras.Sequential().fit(x)", 1, False),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", 2, False),
        ("import xgboost\nxgboost.train({}, d)", 2, True),
        ("import xgboost as xgb\nwith xgb.collective.CommunicatorContext(): pass", 2, False),
        ("from transformers import AutoModel\nAutoModel.from_pretrained('x')", 2, True),
        (
            "from transformers import AutoModel\nimport smdistributed.modelparallel.torch as smp\nsmp.init()",
            2,
            False,
        ),
        ("from transformers import Trainer\nTrainer(model=m).train()", 2, False),
        ("from accelerate import Accelerator\nAccelerator()", 2, False),
    ],
)
def test_hosts_that_nothing_joins_each_do_the_whole_work(
    text: str, count: int, is_warned: bool, tmp_path: Path
) -> None:
    warnings = [each for each in plan_of(tmp_path, text, hosts(count)).warnings if "the whole work" in each]
    assert len(warnings) == is_warned


def test_a_link_that_leads_nowhere_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to("missing.py")
    assert missing_path_text(tmp_path / "train.py", "train.py") == (
        "train.py is a link to missing.py, which does not exist"
    )


@pytest.mark.parametrize("strategy", ["custom", "processing"])
def test_a_script_that_reads_its_own_host_is_not_said_to_read_none(strategy: str, tmp_path: Path) -> None:
    text = "import os\nhost = os.environ['SM_CURRENT_HOST']\n"
    plan = plan_of(tmp_path, text, hosts(2, strategy=strategy))
    (warning,) = [each for each in plan.warnings if "the whole work" in each]
    assert "reads which host it is on (SM_CURRENT_HOST)" in warning and "nothing in" not in warning
    assert "unless it chooses its part by that name" in warning
    both = text + "others = os.environ['SM_HOSTS']\n"
    plan = plan_of(tmp_path, both, hosts(2, strategy=strategy))
    assert not [each for each in plan.warnings if "the whole work" in each]


def test_ranks_of_a_sagemaker_script_are_its_hosts(tmp_path: Path) -> None:
    path = IMAGENET.parent.parent / "18_sagemaker_mnist" / "mnist.py"
    job = hosts(2, inputs={"training": "s3://b/d/"}, hyperparameters={"backend": "gloo", "epochs": 1})
    plan = plan_of(tmp_path, path.read_text(), job)
    assert (plan.processes_per_host, problems_of(tmp_path, path.read_text(), job)) == (1, [])


# ---- channels, packages, saved files ----------------------------------------------------------------------

READS = "import os\nfolder = os.environ['SM_CHANNEL_TRAINING']\n"
READS_MAYBE = "import os\nfolder = os.environ.get('SM_CHANNEL_TRAINING', 'data')\n"


@table(
    ("text", "inputs", "problem", "warning"),
    [
        (READS, {"training": "s3://b/d/"}, "", ""),
        (
            READS,
            {},
            "SM_CHANNEL_TRAINING, and no input is called training; give it: --input training=URI",
            "",
        ),
        (
            READS,
            {"train": "s3://b/d/"},
            "call 'train', which nothing reads, so: --input training=s3://b/d/",
            "",
        ),
        (READS_MAYBE, {}, "", ""),
        (READS_MAYBE, {"train": "s3://b/d/"}, "", "call 'train', which nothing reads, so"),
        (
            READS_MAYBE,
            {"training": "s3://b/d/", "extra": "s3://b/d/"},
            "",
            "inputs.extra: nothing in train.py reads SM_CHANNEL_EXTRA",
        ),
        (
            "import json\n",
            {"train": "s3://b/d/"},
            "",
            "inputs.train: nothing in train.py reads SM_CHANNEL_TRAIN or names",
        ),
        ("folder = '/opt/ml/input/data'\n", {"train": "s3://b/d/"}, "", ""),
        ("import os\nos.environ['SM_INPUT_DIR']\n", {"train": "s3://b/d/"}, "", ""),
    ],
)
def test_channels_are_those_that_the_script_reads(
    text: str, inputs: dict[str, str], problem: str, warning: str, tmp_path: Path
) -> None:
    problems = problems_of(tmp_path, text, {"inputs": inputs})
    assert (problem in problems[0]) if problem else problems == []
    if not problem:
        warnings = [
            each for each in plan_of(tmp_path, text, {"inputs": inputs}).warnings if "SM_CHANNEL" in each
        ]
        assert (warning in warnings[0]) if warning else warnings == []


@table(
    ("text", "expected"),
    [
        ("import nowhere_package", ["nowhere_package"]),
        ("from nowhere_package.models import Net\nimport json, yaml", ["nowhere_package"]),
        ("try:\n    import nowhere_package\nexcept ImportError:\n    pass", []),
        ("def late():\n    import nowhere_package", []),
        ("if True:\n    import nowhere_package", []),
        ("import helper", ["needed_by_helper"]),
        ("from package import part", ["needed_by_part"]),
        ("from . import helper", ["needed_by_helper"]),
    ],
)
def test_packages_that_this_python_lacks(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir(exist_ok=True)
    (tmp_path / "package" / "part.py").write_text("import needed_by_part\n")
    (tmp_path / "helper.py").write_text("import needed_by_helper\n")
    (tmp_path / "train.py").write_text(text)
    missing = find_missing_packages(read_source_program(tmp_path / "train.py", tmp_path))
    assert [package.name for package in missing] == expected


@table(
    "change",
    [
        "sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'src'))",
        "sys.path.insert(0, 'src')",
        "sys.path.insert(0, str(Path(__file__).resolve().parent / 'src'))",
        "sys.path.append(os.getcwd() + '/src')",
        "sys.path.append(f'{os.getcwd()}/src')",
        "sys.path += ['src']",
        "sys.path[:0] = ['src']",
        "site.addsitedir('src')",
    ],
)
def test_a_folder_that_the_script_adds_to_its_path_may_have_the_module(change: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "own_package").mkdir(parents=True, exist_ok=True)
    (tmp_path / "src" / "own_module.py").touch()
    beginning = f"import os, sys, site\nfrom pathlib import Path\n{change}\n"
    (tmp_path / "train.py").write_text(beginning + "import own_module, own_package, nowhere_package\n")
    missing = find_missing_packages(read_source_program(tmp_path / "train.py", tmp_path))
    assert [package.name for package in missing] == ["nowhere_package"]
    (tmp_path / "train.py").write_text(beginning + "sys.path.append('/opt/lib')\nimport nowhere_package\n")
    assert find_missing_packages(read_source_program(tmp_path / "train.py", tmp_path)) == ()


def test_a_module_that_is_not_sent_is_missing(tmp_path: Path) -> None:
    (tmp_path / "own_helper.py").touch()
    (tmp_path / "train.py").write_text("import own_helper\n")
    assert (
        find_missing_packages(
            read_source_program(tmp_path / "train.py", tmp_path), {"train.py", "own_helper.py"}
        )
        == ()
    )
    (missing,) = find_missing_packages(read_source_program(tmp_path / "train.py", tmp_path), {"train.py"})
    assert (missing.name, missing.file_not_sent) == ("own_helper", "own_helper.py")


@table(
    ("text", "expected"),
    [
        (
            "import torch\ntorch.save(m, 'model.pt')",
            "train.py:2 saves to 'model.pt', which is lost with the host",
        ),
        ("import torch\ntorch.save(m, '/tmp/out/model.pt')", "saves to '/tmp/out/model.pt'"),
        ("import torch\nfor e in (1, 2): torch.save(m, f'model_{e}.pt')", "saves to 'model_'"),
        ("import torch\nPATH = 'net.pth'\ntorch.save(m, PATH)", "train.py:3 saves to 'net.pth'"),
        ("import torch\nwith open('net.pth', 'wb') as f: torch.save(m, f)", "saves to 'net.pth'"),
        ("import joblib\njoblib.dump(m, 'models/m.pkl')", "saves to 'models/m.pkl'"),
        ("import pickle\npickle.dump(m, open('m.pkl', 'wb'))", "saves to 'm.pkl'"),
        ("model.save('final.keras')", "saves to 'final.keras'"),
        ("model.save_pretrained('./out')", "saves to './out'"),
        ("trainer.save_model('out')", "saves to 'out'"),
        ("import torch, os\ntorch.save(m, os.path.join('out', 'm.pt'))", "saves to 'out'"),
        ("import torch, os\ntorch.save(m, os.path.join(os.environ['SM_MODEL_DIR'], 'm.pt'))", ""),
        ("import torch\ntorch.save(m, '/opt/ml/model/m.pt')", ""),
        ("import torch\ntorch.save(m, path())", ""),
        ("image.save('figure.png')", ""),
        (
            "import torch, argparse\np = argparse.ArgumentParser()\n"
            "p.add_argument('--save', default='model.pt')\n"
            "args = p.parse_args()\ntorch.save(m, args.save)",
            "give the script --save /opt/ml/model/model.pt",
        ),
    ],
)
def test_files_that_are_lost_with_the_host(text: str, expected: str, tmp_path: Path) -> None:
    warnings = [warning for warning in plan_of(tmp_path, text).warnings if "saves to" in warning]
    assert (expected in warnings[0]) if expected else warnings == []


@table(
    ("checkpoints", "remedy"),
    [
        (
            None,
            "write it to /opt/ml/checkpoints, which is uploaded while the job runs if the job has",
        ),
        (
            {"uri": "s3://b/c", "local_path": "/opt/ml/state"},
            "write it to /opt/ml/state, which is uploaded while",
        ),
    ],
)
def test_a_checkpoint_belongs_in_the_folder_that_is_uploaded_while_the_job_runs(
    checkpoints: dict[str, str] | None, remedy: str, tmp_path: Path
) -> None:
    text = "import torch\ntorch.save(m, 'model.pt')\ntorch.save(s, './checkpoints/last.pt')"
    job = {} if checkpoints is None else {"checkpoints": checkpoints}
    result, checkpoint = [line for line in plan_of(tmp_path, text, job).warnings if "saves to" in line]
    assert "'model.pt', which is lost" in result and "SM_MODEL_DIR" in result
    assert "'./checkpoints/last.pt', which is lost" in checkpoint and remedy in checkpoint


def test_a_path_that_the_job_states_is_not_the_default(tmp_path: Path) -> None:
    text = (
        "import torch, argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--save', default='model.pt')\n"
        "args = p.parse_args()\ntorch.save(m, args.save)"
    )
    for job in ({"args": ["--save", "/opt/ml/model/m.pt"]}, {"hyperparameters": {"save": "/opt/ml/model"}}):
        assert not [warning for warning in plan_of(tmp_path, text, job).warnings if "saves to" in warning]


@table(
    ("text", "modules", "strategy"),
    [
        ("import jax", {}, "custom"),
        ("import lightgbm", {}, "custom"),
        ("import helper", {"helper": "import tensorflow as tf"}, "tensorflow"),
        ("import helper", {"helper": "import torch.distributed as dist"}, "ddp"),
        ("import torch", {}, "ddp"),
        ("import xgboost", {}, "xgboost"),
    ],
)
def test_a_script_without_pytorch_is_not_started_as_ddp(
    text: str, modules: dict[str, str], strategy: str, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, text, hosts(2), **modules)
    assert plan.strategy == strategy
    if strategy == "custom":
        assert any("the 2 hosts does the whole work" in warning for warning in plan.warnings)


PYTORCH = (
    "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.10.0-{}-py313-ubuntu22.04-sagemaker"
)


@table(
    ("processor", "instance_type", "is_refused"),
    [
        ("cpu-", "ml.g5.xlarge", True),
        ("gpu", "ml.m5.xlarge", True),
        ("cpu", "ml.m5.xlarge", False),
        ("gpu", "ml.g5.xlarge", False),
        ("cpu", "ml.unknown9.xlarge", False),
    ],
)
def test_an_image_is_for_the_processors_of_its_hosts(
    processor: str, instance_type: str, is_refused: bool
) -> None:
    mapping = {
        "entry": "src/train.py",
        "image": PYTORCH.format(processor.strip("-")),
        "compute": {"instance_type": instance_type},
    }
    if not is_refused:
        make_plan(Job.from_mapping(mapping), region(), "digits")
        return
    with pytest.raises(JobError) as caught:
        make_plan(Job.from_mapping(mapping), region(), "digits")
    (problem,) = caught.value.problems
    assert problem.path == "image"
    assert "--allow image.processor" in problem.message
    allowed = {**mapping, "allow": ["image.processor"]}
    assert any(
        "image:" in warning for warning in make_plan(Job.from_mapping(allowed), region(), "digits").warnings
    )


DDP = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


@table(
    ("text", "modules", "strategy"),
    [
        (f"if TYPE_CHECKING: import ray\n{DDP}", {}, "ddp"),
        (f"def tune(): import ray\n{DDP}", {}, "ddp"),
        (f"def tune(): import xgboost\n{DDP}", {}, "ddp"),
        (f"try: import mpi4py\nexcept ImportError: mpi4py = None\n{DDP}", {}, "ddp"),
        (f"import ray\n{DDP}", {"ray": ""}, "ddp"),
        (f"if False: import mpi4py\n{DDP}", {}, "ddp"),
        (f"if use_ray: import ray\n{DDP}", {}, "ddp"),
        ("try: import ray\nexcept ImportError: ray = None\nimport helper", {"helper": DDP}, "ddp"),
        (f"import ray\n{DDP}", {}, "ray"),
        (f"def main():\n  import ray\n{DDP}if __name__ == '__main__':\n  main()", {}, "ray"),
        (f"try: import ray\nexcept ImportError: raise\n{DDP}", {}, "ray"),
        ("try: import mpi4py\nexcept ImportError: mpi4py = None\n", {}, "mpi"),
        (f"'On SageMaker the hosts are in resourceconfig.json'\n{DDP}", {}, "ddp"),
        (f"print('/opt/ml/input/config/resourceconfig.json')\n{DDP}", {}, "ddp"),
        (f"raise_for('see resourceconfig.json')\n{DDP}", {}, "ddp"),
        (f"json.load(open('/opt/ml/input/config/resourceconfig.json'))\n{DDP}", {}, "custom"),
        (f"PATH = f'{{config}}/resourceconfig.json'\n{DDP}", {}, "custom"),
    ],
)
def test_what_may_not_run_does_not_choose_the_strategy(
    text: str, modules: dict[str, str], strategy: str, tmp_path: Path
) -> None:
    for path in tmp_path.glob("*.py"):
        path.unlink()
    assert plan_of(tmp_path, text, hosts(2), **modules).strategy == strategy


def test_the_reason_names_the_module_that_imports_the_library(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "import helper\nhelper.go()", hosts(2), helper=DDP)
    assert any(
        "helper.py, which train.py imports, imports torch.distributed" in str(reason)
        for reason in plan.reasons
    )
    assert not any("joins ranks" in warning for warning in plan.warnings)


def test_ranks_that_a_script_without_pytorch_reads_are_set(tmp_path: Path) -> None:
    assert plan_of(tmp_path, "import os\nos.environ['RANK']", hosts(2)).strategy == "ddp"


@table(
    ("text", "problem"),
    [
        ("a" + ".f(1)" * 200, ""),
        ("a" + ".f(1)" * 200 + "\nimport os\nos.environ['SM_CHANNEL_X'" + ".x()" * 200 + "]", ""),
        ("x = " + "+".join(["1"] * 20_000), "nested too deeply"),
        ("return", "line 1: 'return' outside function"),
        ("await x", "line 1: 'await' outside function"),
        ("break", "line 1: 'break' outside loop"),
        ("def f(a, a): pass", "line 1: duplicate argument"),
        ("from __future__ import braces", "line 1: not a chance"),
        ("nonlocal x", "line 1: nonlocal declaration"),
    ],
)
def test_a_script_that_python_rejects_is_a_problem(text: str, problem: str, tmp_path: Path) -> None:
    problems = problems_of(tmp_path, text)
    assert (problem in problems[0]) if problem else problems == []


ARGPARSE = "import argparse, sys\np = argparse.ArgumentParser()\n"
X = "p.add_argument('--x', required=True)\np.parse_args()\n"


@table(
    ("text", "args"),
    [
        (f"{ARGPARSE}add = p.add_argument\nadd('--lr', type=float)\np.parse_args()", ["--lr", "1"]),
        (f"{ARGPARSE}p.add_argument('--a', action=Own, nargs=0)\np.parse_args()", ["--a"]),
        (
            f"{ARGPARSE}p.add_argument('a', nargs='*')\np.add_argument('--b')\np.parse_intermixed_args()",
            ["a", "--b", "1", "b"],
        ),
        ("def get():\n  " + (ARGPARSE + X).replace("\n", "\n  "), []),
        (f"import sys\nif len(sys.argv) < 2: sys.exit(0)\n{ARGPARSE}{X}", []),
        (f"{ARGPARSE}a = p.add_argument('--a', required=True)\na.required = False\np.parse_args()", []),
        (
            f"{ARGPARSE}p.add_argument('--x', required=True)\ntry: p.parse_args()\nexcept SystemExit: pass",
            [],
        ),
        (
            f"{ARGPARSE}p.add_argument('--x', required=True)\nwith suppress(SystemExit): p.parse_args()",
            [],
        ),
        (f"def int(text): return 0\n{ARGPARSE}p.add_argument('--a', type=int)\np.parse_args()", ["--a=b"]),
    ],
)
def test_arguments_that_argparse_may_accept_are_not_refused(
    text: str, args: list[str], tmp_path: Path
) -> None:
    assert problems_of(tmp_path, text, {"args": args}) == []


CHANNEL = "SM_CHANNEL_TRAIN"


@table(
    "line",
    [
        f"os.environ.setdefault('{CHANNEL}', 'data')",
        f"os.environ['{CHANNEL}'] = 'data'",
        f"if '{CHANNEL}' not in os.environ: os.environ['{CHANNEL}'] = '.'",
        f"os.environ.update({CHANNEL}='x')",
        f"os.environ.update({{'{CHANNEL}': 'x'}})",
        "os.environ.update(settings)",
    ],
)
def test_a_channel_that_the_script_sets_itself_is_not_missing(line: str, tmp_path: Path) -> None:
    reads = f"os.environ['{CHANNEL}']"
    assert problems_of(tmp_path, f"import os\n{line}\n{reads}") == []
    assert problems_of(tmp_path, f"import os, contextlib\nwith contextlib.suppress(KeyError): {reads}") == []
    assert problems_of(tmp_path, f"import os\n{reads}") != []


NCCL = "dist.init_process_group('nccl')"
GLOO = "dist.init_process_group('gloo')"


@table(
    ("text", "is_refused"),
    [
        (f"try: {NCCL}\nexcept Exception: {GLOO}", False),
        (f"def gpu(): {NCCL}\ndef cpu(): {GLOO}\ncpu()", False),
        (f"import os\ndef local(): os.environ['RANK'] = '0'\n{GLOO}", False),
        (f"import os\ndef local(): os.environ['MASTER_ADDR'] = 'localhost'\n{GLOO}", False),
        (NCCL, True),
        (f"import os\nos.environ['MASTER_ADDR'], os.environ['A'] = 'localhost', '1'\n{GLOO}", True),
        (f"import os\nos.environ['MASTER_ADDR'] = x = 'localhost'\n{GLOO}", True),
        (f"import os\nos.environ.update({{'MASTER_ADDR': '127.0.0.1', 'RANK': '0'}})\n{GLOO}", True),
        (f"import os\nos.environ.update(MASTER_ADDR='127.0.0.1')\n{GLOO}", True),
        (f"import os\nos.environ.update({{'MASTER_ADDR': 'x', **os.environ}})\n{GLOO}", False),
        (f"import os\nos.environ.update(LANG='C')\n{GLOO}", False),
        (f"import os, socket\nos.environ['MASTER_ADDR'] = socket.gethostname()\n{GLOO}", True),
        (f"import os\nos.environ['MASTER_ADDR'] = first_host()\n{GLOO}", False),
        (f"def setup(): {NCCL}\nsetup()", True),
        ("BACKEND = 'nccl'\ndist.init_process_group(BACKEND)", True),
        ("dist.init_process_group(backend='NCCL')", True),
        (f"import os\ndef local(): os.environ['MASTER_ADDR'] = 'localhost'\nlocal()\n{GLOO}", True),
    ],
)
def test_only_what_certainly_runs_is_refused(text: str, is_refused: bool, tmp_path: Path) -> None:
    script = f"import torch.distributed as dist\n{text}"
    assert bool(problems_of(tmp_path, script, hosts(2))) is is_refused


@table(
    ("settings", "args"),
    [("type=int", ["--password", "Zx9Qw8Er7Ty6"]), ("choices=['a']", ["--passw", "Zx9Qw8Er7Ty6"])],
)
def test_an_error_about_arguments_shows_no_secret(settings: str, args: list[str], tmp_path: Path) -> None:
    text = f"{ARGPARSE}p.add_argument('--password', {settings})\np.parse_args()"
    (problem,) = problems_of(tmp_path, text, {"args": args})
    assert "argument --password: invalid" in problem
    assert "Zx9" not in problem


@table(
    ("text", "strategy", "is_refused"),
    [
        ("import os, torch\nimport torch.distributed", "horovod", True),
        ("import helper", "horovod", True),
        ("import torch, smlaunch.train", "neuron", True),
        ("import torch", "smp", True),
        ("import torch", "smddp", True),
        ("try: import horovod.torch as hvd\nexcept ImportError: hvd = None", "horovod", False),
        ("import loader\nloader.main()", "horovod", False),
        ("import company_training", "horovod", False),  # which may import it
        ("import importlib\nimportlib.import_module('horo' + 'vod')", "horovod", False),
        ("import torch_xla.core.xla_model as xm", "neuron", False),
        ("import torch.sagemaker as tsm", "smp", False),
        ("import torch", "ddp", False),
    ],
)
def test_a_strategy_needs_its_library(text: str, strategy: str, is_refused: bool, tmp_path: Path) -> None:
    types = {"neuron": "ml.trn1.32xlarge", "smp": "ml.p4d.24xlarge", "smddp": "ml.p4d.24xlarge"}
    instance_type = types.get(strategy, "ml.m5.xlarge")
    job = {"strategy": strategy, "compute": {"hosts": 2, "instance_type": instance_type}}
    modules = {"helper": "import torch", "loader": "import horovod.torch as hvd\ndef main(): hvd.init()"}
    problems = problems_of(tmp_path, text, job, **modules)
    assert all("would do nothing for it" in problem for problem in problems)
    assert bool(problems) is is_refused


def test_a_home_folder_that_is_not_known_is_no_home_folder(tmp_path: Path) -> None:
    assert expand_home("~.py") == Path("~.py")
    assert expand_home("~/t.py") == Path.home() / "t.py"
    entry = Job(entry="~nosuchuser/t.py").entry
    assert entry is not None
    assert find_program_file(entry, tmp_path) == Path("~nosuchuser/t.py")


def test_an_abbreviated_argument_is_a_warning(tmp_path: Path) -> None:
    job = {"hyperparameters": {"epoch": 3}}
    (warning,) = [line for line in plan_of(tmp_path, PARSER, job).warnings if "epoch" in line]
    assert warning.startswith("hyperparameters.epoch: the script has no argument --epoch (train.py:11)")
    assert warning.endswith("argparse takes it for --epochs: write that.")
    assert not any(
        "epoch" in line for line in plan_of(tmp_path, PARSER, {"args": ["--epochs", "3"]}).warnings
    )
