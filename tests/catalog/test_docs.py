"""The tables in docs say what the catalog says."""

from __future__ import annotations

from smlaunch.catalog import images
from smlaunch.catalog.algorithms import Algorithm, known_algorithms
from tests.conftest import ROOT

HOSTS = {"several": "several", "one": "one", "unclear": "several, warned of"}
GPUS = {"all": "all of a host", "one": "one of a host", "none": "none", None: "not known"}


def _row(algorithm: Algorithm) -> str:
    required = ", ".join(" or ".join(group) for group in algorithm.required_channels)
    optional = f" ({', '.join(algorithm.optional_channels)})" if algorithm.optional_channels else ""
    runs_on = ", ".join(algorithm.processors).upper()
    gpus = GPUS[algorithm.gpus] if "gpu" in algorithm.processors else ""
    hyperparameters = ", ".join(f"`{name}`" for name in algorithm.required_hyperparameters)
    cells = (
        f"`{algorithm.id}`" + (" (JumpStart)" if algorithm.jumpstart else ""),
        required + optional,
        ", ".join(algorithm.modes),
        ", ".join(algorithm.files),
        runs_on,
        gpus,
        HOSTS[algorithm.hosts],
        hyperparameters,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def test_algorithms() -> None:
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [_row(algorithm) for algorithm in known_algorithms().values()]


def test_images() -> None:
    text = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    expected = []
    for family in images.image_families():
        defaults = ", ".join(
            f"{images.default_version(family, processor)} ({processor})"
            for processor in images.family_processors(family)
        )
        versions = images.family_versions(family)
        span = f"{versions[0]} to {versions[-1]}" if versions else "none: retired"
        expected.append(
            f"| `{family}` | {images.family_title(family)} | {span} | {defaults} |".replace("|  |", "| |")
        )
    assert rows == expected


if __name__ == "__main__":
    print("\n".join(_row(algorithm) for algorithm in known_algorithms().values()))
