"""Where our ranks' environment is meant to differ from AWS's own launchers', and why.

python -m tests.real.environment_differences > docs/environment.md
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_INTRODUCTION = """\
`make test-real` starts the same script with all three launchers, as one plain process of two hosts and under
torchrun. It fails if a difference is not listed here, or if a listed difference no longer exists. All other
variables are equal; texts that JSON decodes to the same data count as equal. If AWS's launchers use two
names for a variable, smlaunch sets both."""

TOOLKIT: Mapping[str, str] = {
    "MASTER_ADDR": "With one host: the loopback address, which needs no name server.",
    "MASTER_PORT": "The job's own port, 29500 by default, also with one host, where theirs is random.",
    "NCCL_PROTO": "AWS forces `simple`, which helped old images and slows down the current aws-ofi-nccl. "
    "A job can set it itself.",
    "PYTHONPATH": "The source, the previous value, a folder for smlaunch.train. The toolkit adds its own "
    "interpreter's complete path, which every rank has anyway.",
    "SM_FRAMEWORK_PARAMS": "Settings of the toolkit itself; smlaunch sends none.",
    "SM_MODULE_DIR": "The folder of the source on the host, and not its S3 address.",
    "SM_TRAINING_ENV.additional_framework_parameters": "As SM_FRAMEWORK_PARAMS.",
    "SM_TRAINING_ENV.module_dir": "As SM_MODULE_DIR.",
    "SM_USER_ARGS": (
        "The script's arguments; numbers keep the text that was sent (`0.10` of `--hp lr=0.10`, and of "
        "`lr: 0.10` in a job file)."
    ),
    "TORCHELASTIC_ERROR_FILE": "For torchrun's agent, which only runs with `launcher: torchrun`.",
    "TORCHELASTIC_RUN_ID": "The job's name, the same on all hosts, instead of a random number.",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "As TORCHELASTIC_ERROR_FILE.",
    "TORCHELASTIC_USE_AGENT_STORE": "Rank 0 has the store, and no agent.",
}
"""Variables that the toolkit sets to something else, or that only it sets."""

DRIVERS: Mapping[str, str] = {
    **{name: TOOLKIT[name] for name in ("MASTER_ADDR", "MASTER_PORT", "NCCL_PROTO")},
    **{name: text for name, text in TOOLKIT.items() if name.startswith("TORCHELASTIC_")},
    "OLDPWD": "Set by their shell script.",
    "PWD": "Set by their shell script.",
    "PYTHONPATH": "The source comes first, as with the toolkit: a script in a folder can import from it.",
    "SHLVL": "Set by their shell script.",
    "SM_DISTRIBUTED_CONFIG": "Instructions for their own driver; smlaunch's are in job.json.",
    "SM_DISTRIBUTED_DRIVER_DIR": "As SM_DISTRIBUTED_CONFIG.",
    "SM_HP_NOTHING": "A hyperparameter null is an empty text, as with the toolkit, and not `null`.",
    "SM_MASTER_ADDR": "The leader of the training group; theirs is always algo-1.",
    "SM_MASTER_PORT": "The port in use.",
    "SM_SOURCE_DIR": "The folder of the source.",
    "SM_TRAINING_ENV.input_data_dir": "In SM_INPUT_DATA_DIR; SM_TRAINING_ENV has the toolkit's keys.",
    "SM_TRAINING_ENV.master_addr": "In SM_MASTER_ADDR; the toolkit's key is master_hostname.",
    "SM_TRAINING_ENV.master_port": "In SM_MASTER_PORT.",
    "_": "Set by their shell script.",
}
"""The same for SDK v3's drivers."""

OURS: Mapping[str, str] = {
    "GLOO_SOCKET_IFNAME": "Without it, Gloo resolves the machine's own name, which may fail in a container.",
    "PYTHONFAULTHANDLER": "Stacks at a hang or a crash. An empty value in the job's environment: off.",
    "PYTHONUNBUFFERED": "A script's last lines are not lost in a buffer. AWS's images set it too.",
    "SMLAUNCH_ATTEMPT": "The job's attempt number within the segment.",
    "SMLAUNCH_CHECKPOINT_UPLOAD": "Upload mode of checkpoints: the platform's sync, or direct by the ranks.",
    "SMLAUNCH_JOB": "The job's name, for checkpoints and the outcome.",
    "SMLAUNCH_CHECKPOINT_KEEP": "The number of checkpoints to keep.",
    "SMLAUNCH_SEGMENT": "The number of the job's segment in its run.",
    "SMLAUNCH_STOP_FILE": "A file that tells the ranks to exit. `smlaunch.train` reads all of these.",
}
"""Variables that neither of them sets."""

ARGUMENTS = """\
| hyperparameter sent as | smlaunch | toolkit 5.1.4 | SDK v3 drivers |
|---|---|---|---|
| `0.10` | `--lr 0.10` | `--lr 0.1` | `--lr 0.1` |
| `true` | `--nesterov True` | `--nesterov True` | `--nesterov true` |
| `[64, 32]` | `--layers '[64, 32]'` | `--layers '[64, 32]'` | `--layers '[64, 32]'` |
| `{"warmup": 5, "kind": "cosine"}` | `--schedule kind=cosine,warmup=5` | `--schedule kind=cosine,warmup=5` \
| `--schedule '{"warmup": 5, "kind": "cosine"}'` |
| `null` | `--nothing ''` | `--nothing ''` | `--nothing null` |
| `k` is `7` | `-k 7` | `-k 7` | `--k 7` |
| order | sorted | sorted | as sent |
"""


def render() -> str:
    tables = [
        ("Different from sagemaker-training 5.1.4 (`train` in AWS's images)", TOOLKIT),
        ("Different from the drivers of the SageMaker SDK v3 (ModelTrainer)", DRIVERS),
        ("Set only by smlaunch", OURS),
    ]
    parts = [
        "# Environment of a rank compared with AWS's launchers",
        "Generated by `python -m tests.real.environment_differences`.",
        _INTRODUCTION,
    ]
    for title, table in tables:
        rows = [f"| `{name}` | {reason} |" for name, reason in sorted(table.items())]
        parts.append("\n".join((f"## {title}", "", "| variable | why |", "|---|---|", *rows)))
    parts.append("## Arguments\n\n" + ARGUMENTS.strip())
    return "\n\n".join(parts) + "\n"


def command_words() -> dict[str, tuple[str, str, str]]:
    """Returns the rows of the table of arguments, by their first column."""
    rows = [
        tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|")))
        for line in ARGUMENTS.splitlines()[2:]
    ]
    return {row[0]: (row[1], row[2], row[3]) for row in rows}


if __name__ == "__main__":
    print(render(), end="")
