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


@dataclass(frozen=True)
class Starter:
    """``script``: of entrypoints/; None where the algorithm or the image brings the program. ``beside``:
    files that it needs. ``packages``: what it imports, as pip names it. ``make``: a command that makes its
    inputs. ``hosts`` and ``processes`` (per host; None leaves it to the plan). ``lines``: further lines of
    the job file. ``local``: whether it runs on this machine.
    """

    script: str | None
    packages: str = ""
    beside: tuple[str, ...] = ()
    make: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    hosts: int = 2
    processes: int | None = None
    lines: tuple[str, ...] = ()
    local: bool = True


def _on_digits(script: str, packages: str, *, beside: tuple[str, ...] = (), **more: Any) -> Starter:
    """A script that learns handwritten digits, which prepare_digits.py takes out of scikit-learn."""
    return Starter(
        script,
        f"{packages} numpy scikit-learn",
        ("prepare_digits.py", *beside),
        "python prepare_digits.py --out demo-data",
        DIGITS,
        **more,
    )


STARTERS: dict[str, Starter] = {
    "custom": _on_digits("train_custom.py", ""),
    "ddp": _on_digits("train_ddp.py", "torch", processes=2),
}


def job_text(name: str) -> str:
    """A job file for the strategy, with comments. Raises KeyError for a strategy that has no starter."""
    starter, strategy = STARTERS[name], load(name)
    lines = [
        f"# {name} {strategy.summary}.",
        *([f"# The script needs {starter.packages}"] if starter.packages.strip() else []),
    ]
    if starter.script is not None:
        lines.append(f"entry: {starter.script}")
    lines += [f"strategy: {name}", *starter.lines]
    processes = "" if starter.processes is None else f", processes_per_host: {starter.processes}"
    lines.append(f"compute: {{hosts: {starter.hosts}{processes}}}")
    if starter.inputs:
        lines.append("inputs:")
        lines += [f"  {channel}: {address}" for channel, address in starter.inputs.items()]
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
