"""What analysis of a script finds: how many accelerators it can use, and what is missing for more."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from smlaunch.discovery.script_analysis import read_script_facts, transitive_features
from smlaunch.discovery.source_modules import read_source_program
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.facts.script_capability import ScriptCapability, needs_module_scan, script_capability
from tests.planner.fixtures import plan, region

ENTRYPOINTS = Path(__file__).parent.parent.parent / "entrypoints"

COMPLETE = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
dist.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"])
model = DDP(net().to(device))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in loader:
        model(batch).sum().backward()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), "model.pt")
"""

LACKS = [
    ('dist.init_process_group("nccl")\n', "pass\n", "a process group", None),
    ('int(os.environ["LOCAL_RANK"])', '"cuda"', "the device of LOCAL_RANK", 8),
    ("DDP(net().to(device))", "net().to(device)", "gradients that are averaged", 15),
    ("sampler = DistributedSampler(data)\nloader = DataLoader(data, sampler=sampler)",
     "sampler = None\nloader = DataLoader(data, shuffle=True)", "a sampler that gives every rank", 11),
    ("    sampler.set_epoch(epoch)\n", "    pass\n", "sampler.set_epoch(epoch)", 10),
    ("if dist.get_rank() == 0:", "if True:", "only rank 0 writing", 17),
]  # fmt: skip


def read(folder: Path, text: str) -> ScriptFacts:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    facts = read_script_facts(script)
    assert facts.problem is None
    return facts


def analyze(folder: Path, text: str) -> ScriptCapability:
    return script_capability(read(folder, text), "train.py")


def test_a_script_with_all_of_it_lacks_nothing(tmp_path: Path) -> None:
    capability = analyze(tmp_path, COMPLETE)
    assert (
        capability.accelerator_use,
        capability.missing_steps,
        capability.shards_model,
        capability.uses_accelerators,
    ) == (
        "several",
        (),
        False,
        True,
    )


@pytest.mark.parametrize(("text", "instead", "message", "line"), LACKS, ids=[row[2] for row in LACKS])
def test_each_thing_that_lacks_is_said_with_its_line(
    tmp_path: Path, text: str, instead: str, message: str, line: int | None
) -> None:
    assert text in COMPLETE
    (missing,) = analyze(tmp_path, COMPLETE.replace(text, instead)).missing_steps
    assert missing.startswith(message)
    assert line is None or f"(train.py, line {line})" in missing


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("import json", "one"),
        ("import torch\nmodel = net().cuda()", "one"),
        ("import torch\nmodel = torch.nn.DataParallel(net())", "instance"),
        ("import torch.multiprocessing as mp\nmp.spawn(work, nprocs=4)", "instance"),
        ("import tensorflow as tf\ntf.distribute.MirroredStrategy()", "instance"),
        ("import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()", "several"),
        ("from accelerate import Accelerator\nAccelerator()", "several"),
        ("from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained('x')", "one"),
        ("import transformers\ntransformers.Trainer(model).train()", "several"),
        ("import deepspeed\ndeepspeed.initialize(model=m)", "several"),
        ("import lightning as L\nL.Trainer().fit(m)", "several"),
        ("from torch import distributed\ndistributed.init_process_group()", "several"),
        # Words that mean something else elsewhere.
        ("def save(x): pass\nclass Trainer: pass\nsave(1)\nTrainer()", "one"),
    ],
)
def test_what_it_can_use(tmp_path: Path, text: str, use: str) -> None:
    capability = analyze(tmp_path, text)
    assert capability.accelerator_use == use
    if use == "several":
        assert not [step for step in capability.missing_steps if not step.startswith("the device")]


@pytest.mark.parametrize(
    ("text", "is_sharded"),
    [
        ("TrainingArguments(fsdp='full_shard auto_wrap')", True),
        ("TrainingArguments(deepspeed='zero3.json')", True),
        ("TrainingArguments(deepspeed={'zero_optimization': {'stage': 3}})", True),
        ("Accelerator(fsdp_plugin=plugin)", True),
        ("accelerate.FullyShardedDataParallelPlugin()", True),
        ("L.Trainer(strategy='deepspeed_stage_3')", True),
        ("L.Trainer(strategy=FSDPStrategy(cpu_offload=True))", True),
        ("TrainingArguments(fsdp='')", False),
        ("TrainingArguments(deepspeed=None)", False),
        ("TrainingArguments(deepspeed=options.deepspeed)", False),
        ("L.Trainer(strategy='ddp')", False),
    ],
)
def test_a_trainer_library_may_shard_the_model(tmp_path: Path, text: str, is_sharded: bool) -> None:
    assert analyze(tmp_path, f"import accelerate\n{text}").shards_model is is_sharded


def test_sharding_is_seen(tmp_path: Path) -> None:
    assert analyze(tmp_path, "from torch.distributed.fsdp import fully_shard\nfully_shard(m)").shards_model
    assert analyze(tmp_path, "import deepspeed").shards_model
    assert not analyze(tmp_path, COMPLETE).shards_model


def test_nobody_guesses_where_nobody_looked() -> None:
    capability = script_capability(ScriptFacts(imports=frozenset({"torch.distributed"})), "train.py")
    assert (capability.accelerator_use, capability.missing_steps, capability.was_analyzed) == (
        "several",
        (),
        False,
    )


@pytest.mark.parametrize(
    "name",
    ["train_ddp", "train_fsdp", "train_gpt", "train_resumable", "train_accelerate", "train_hf",
     "train_lightning"],
)  # fmt: skip
def test_our_own_scripts_for_several_ranks_lack_nothing(name: str) -> None:
    script = ENTRYPOINTS / f"{name}.py"
    facts = read_script_facts(script)._replace(
        features=transitive_features(read_source_program(script, ENTRYPOINTS))
    )
    capability = script_capability(facts, script.name)
    assert (capability.accelerator_use, capability.missing_steps) == ("several", ())


def test_what_the_script_lacks_is_looked_for_in_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "setup_ranks.py").write_text(
        "import torch.distributed as dist\n\ndef join():\n    dist.init_process_group('gloo')\n"
        "    local_rank = 0\n    return local_rank\n",
        encoding="utf-8",
    )
    facts = read(tmp_path, "import torch\nimport torch.distributed\nimport setup_ranks\nsetup_ranks.join()")
    assert needs_module_scan(facts)
    signs = transitive_features(read_source_program(tmp_path / "train.py", tmp_path))
    assert (signs["process-group"].line, signs["process-group"].file) == (4, "setup_ranks.py")
    assert script_capability(facts._replace(features=signs), "train.py").missing_steps == ()


# ---- in a plan -------------------------------------------------------------------------------------------


def test_a_plan_of_several_ranks_says_what_lacks(tmp_path: Path) -> None:
    text = COMPLETE.replace("    sampler.set_epoch(epoch)\n", "").replace(
        "if dist.get_rank() == 0:", "if True:"
    )
    job = {"compute": {"instance_type": "ml.g5.12xlarge"}}
    (warning,) = plan(job, region(script=read(tmp_path, text))).warnings
    assert warning.startswith("For 4 ranks train.py lacks, by its source: sampler.set_epoch")
    assert "only rank 0 writing what is saved (train.py, line 16)" in warning
    one_rank = {"compute": {"instance_type": "ml.g5.xlarge"}}
    assert plan(one_rank, region(script=read(tmp_path, text))).warnings == ()


ONE_ACCELERATOR = """\
import torch
model = torch.nn.Linear(2, 2).to("cuda")
for x in torch.utils.data.DataLoader([1]):
    model(x).sum().backward()
torch.save(model.state_dict(), "model.pt")
"""


def test_a_script_for_one_accelerator_on_several_is_told_all_that_it_lacks(tmp_path: Path) -> None:
    job = {"strategy": "ddp", "compute": {"instance_type": "ml.g5.12xlarge"}}
    first_warning, lacks = plan(job, region(script=read(tmp_path, ONE_ACCELERATOR))).warnings
    assert "every rank trains separately on the same data" in first_warning
    assert lacks.startswith("For 4 ranks train.py lacks, by its source: a process group")
    for expected_text in ("gradients that are averaged", "DistributedSampler", "only rank 0 writing"):
        assert expected_text in lacks


def test_accelerators_that_would_be_idle_are_told_of(tmp_path: Path) -> None:
    script = read(tmp_path, ONE_ACCELERATOR)
    (warning,) = plan({"compute": {"instance_type": "ml.g5.12xlarge"}}, region(script=script)).warnings
    assert warning.startswith("train.py uses one accelerator (by its source), and ml.g5.12xlarge has 4 x ")
    assert "use a smaller type, or several accelerators, for which it lacks: a process group" in warning
    assert plan({"compute": {"instance_type": "ml.g5.xlarge"}}, region(script=script)).warnings == ()
    by_one = read(tmp_path, "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n")
    assert plan({"compute": {"instance_type": "ml.g5.12xlarge"}}, region(script=by_one)).warnings == ()


def test_matplotlib_draws_into_files(tmp_path: Path) -> None:
    facts = read(tmp_path, "import matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()")
    job_plan = plan({}, region(script=facts))
    (task,) = job_plan.planned_jobs
    assert task.launch_spec is not None
    assert dict(task.launch_spec.ranks.env)["MPLBACKEND"] == "Agg"
    assert "display.matplotlib" in [reason.rule for reason in job_plan.reasons]
    assert "train.py, line 3: hosts have no display" in job_plan.warnings[0]
    own_backend = plan({"environment": {"MPLBACKEND": "svg"}}, region(script=facts))
    assert own_backend.planned_jobs[0].launch_spec is not None
    assert "MPLBACKEND" not in dict(own_backend.planned_jobs[0].launch_spec.ranks.env)
    assert "display.matplotlib" not in [reason.rule for reason in own_backend.reasons]
    assert "MPLBACKEND" not in str(plan().planned_jobs[0].launch_spec)
