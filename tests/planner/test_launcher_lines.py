"""Launchers of others that a command or shell script starts on two hosts."""

from __future__ import annotations

import shlex

from smlaunch.facts.launcher_lines import (
    explain_separate_hosts,
    find_launcher_lines,
    launcher_of_command,
    replacement_of,
)
from tests.tables import table

ONE = "torchrun for one host"
JOINED = None


@table(
    ("command", "has_gpus", "expected"),
    [
        ("torchrun --nproc_per_node=2 w.py", False, ONE),
        ("/usr/bin/torchrun --standalone --nnodes 2 w.py", False, ONE),
        (
            "python3.11 -m torch.distributed.run w.py",
            False,
            "python3.11 -m torch.distributed.run for one host",
        ),
        ("bash -c 'torchrun w.py'", False, ONE),
        ("torchrun --nnodes=1:1 w.py", False, ONE),
        (
            "torchrun --nnodes=4 --rdzv_backend=c10d --rdzv_endpoint=algo-1:1 w.py",
            False,
            "torchrun for 4 hosts",
        ),
        ("torchrun --nnodes=2 w.py", False, "torchrun with the same --node_rank on every host"),
        ("torchrun --nnodes 2 --node-rank 0 --master-addr algo-1 w.py", False, "the same --node_rank"),
        ("torchrun --nnodes=2 --rdzv-endpoint=algo-1:29400 w.py", False, "the same --node_rank"),  # static
        ("torchrun --nnodes=2 --rdzv_backend=c10d w.py", False, "each host itself (--rdzv_endpoint)"),
        (
            "torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 w.py",
            False,
            "torchrun with an address that is each host itself (--rdzv_endpoint)",
        ),
        ("torchrun --nnodes=2 --node_rank=$R w.py", False, "each host itself (--master_addr)"),
        ("torchrun --nnodes=2 --node_rank=$R --master_addr=127.0.0.1 w.py", False, "each host itself"),
        ("torchrun --nnodes=2 --node_rank=$R --master_addr=algo-1 w.py", False, JOINED),
        ("torchrun --nnodes=1:4 --rdzv_backend=c10d --rdzv_endpoint=algo-1:29400 w.py", False, JOINED),
        ("torchrun --nnodes=$N --node_rank=$R --master_addr=$A w.py", False, JOINED),
        ("torchrun $OPTIONS w.py", False, JOINED),
        ("python w.py --nnodes 1", False, JOINED),
        ("accelerate launch --cpu w.py", False, JOINED),
        ("accelerate launch --cpu --num_processes 1 w.py --x", False, JOINED),
        ("accelerate launch --num_processes=1 w.py", True, JOINED),
        ("accelerate launch --config_file c.yaml w.py", True, JOINED),
        ("accelerate launch w.py", False, "accelerate launch without --cpu"),
        ("accelerate launch --num_processes 1 w.py", False, "accelerate launch without --cpu"),
        ("accelerate launch --cpu --num_processes 2 w.py", False, "accelerate launch for one host"),
        ("accelerate launch w.py", True, "accelerate launch for one host"),
        ("accelerate launch --multi_gpu --num_processes 8 w.py", True, "accelerate launch for one host"),
        ("accelerate launch --num_machines 2 w.py", True, "the same --machine_rank on every host"),
        (
            "accelerate launch --num_machines 2 --machine_rank $R --main_process_ip algo-1 w.py",
            True,
            JOINED,
        ),
        ("deepspeed w.py", True, "deepspeed for one host"),
        ("deepspeed --hostfile h w.py", True, JOINED),
        ("mpirun -np 2 python w.py", False, "mpirun for one host"),
        ("mpirun -np 2 --host algo-1,algo-2 python w.py", False, JOINED),
    ],
)
def test_what_two_hosts_would_do(command: str, has_gpus: bool, expected: str | None) -> None:
    line = launcher_of_command(shlex.split(command))
    what = None if line is None else explain_separate_hosts(line, 2, has_gpus)
    assert what == expected if expected is None else expected in (what or "")


@table(
    ("command", "expected"),
    [
        ("torchrun --nproc_per_node=2 w.py", "--processes-per-host 2 w.py"),
        ("torchrun --nnodes 2 --nproc-per-node gpu w.py --x 'a b'", "w.py -- --x 'a b'"),
        ("torchrun --standalone -m pkg.train -e 3", "-m pkg.train -- -e 3"),
        ("accelerate launch --cpu --num_processes 2 w.py --y", "--processes-per-host 2 w.py -- --y"),
        ("mpirun -np 2 python w.py", None),
        ("torchrun --no-python ./program", None),
    ],
)
def test_what_smlaunch_starts_in_its_place(command: str, expected: str | None) -> None:
    line = launcher_of_command(shlex.split(command))
    assert line is not None
    assert replacement_of(line) == expected


def test_lines_of_a_shell_script() -> None:
    script = (
        "#!/bin/sh\n# torchrun w.py\npip install x\n"
        'cd a && torchrun \\\n  --nproc_per_node=2 "w.py" --lr 1 | tee log\n'
        "mpirun -np 2 python w.py; echo done\n"
    )
    lines = find_launcher_lines(script.splitlines(True), "run.sh")
    assert [(str(line.place), line.launcher, line.words) for line in lines] == [
        ("run.sh:4", "torchrun", ("--nproc_per_node=2", "w.py", "--lr", "1")),
        ("run.sh:6", "mpirun", ("-np", "2", "python", "w.py")),
    ]
    assert replacement_of(lines[0]) is None
