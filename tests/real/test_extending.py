"""The package of docs/extending.md, taken from the page, installed and run: it is a strategy as any other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping

import pytest

from tests.extending.page import example
from tests.real.conftest import program

IMAGE = "my-repository/jax:1"


@pytest.fixture(scope="module")
def package_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a person who has the package, and the script in the working folder."""
    root = tmp_path_factory.mktemp("extending")
    package = root / "package"
    package.mkdir()
    for name in ("smlaunch_jax.py", "pyproject.toml"):
        (package / name).write_text(example(name))
    (root / "work").mkdir()
    (root / "work" / "train_jax.py").write_text(example("train_jax.py"))
    target = root / "site"
    pip = [program("jax", "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(target), str(package)], check=True, timeout=120)
    own_variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **own_variables,
        "PYTHONPATH": str(target),
        "SMLAUNCH_HOME": str(root / "home"),
        "WORK": str(root / "work"),
    }


def smlaunch(arguments: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("jax", "smlaunch"), *arguments],
        cwd=environment["WORK"],
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=110,
    )


JOB = ["train_jax.py", "--strategy", "jax", "--image", IMAGE, "--local"]


def test_it_runs_on_two_hosts_of_two_ranks(package_environment: Mapping[str, str]) -> None:
    arguments = ["run", *JOB, "--hosts", "2", "--processes-per-host", "2", "--option", "cpu_devices=2"]
    result = smlaunch(arguments, package_environment)
    assert result.returncode == 0, result.stderr
    for rank in range(4):
        assert f"rank {rank} of 4: 8 devices, sum 6" in result.stdout


def test_it_is_planned_with_its_reasons_and_checked_among_all_others(
    package_environment: Mapping[str, str],
) -> None:
    result = smlaunch(["plan", *JOB, "--json"], package_environment)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["strategy"], document["image"]) == ("jax", IMAGE)
    assert "starts every rank with jax.distributed's coordinator" in document["reasons"][0]["because"]
    refusal = smlaunch(
        ["plan", *JOB, "--option", "cpu_devices=0", "--option", "devices=2"], package_environment
    )
    assert refusal.returncode == 2
    assert "options.cpu_devices: a whole number from 1 is needed, not 0" in refusal.stderr
    assert "options.devices: jax has no such option, did you mean 'cpu_devices'?" in refusal.stderr


def test_it_has_a_name_like_ours(package_environment: Mapping[str, str]) -> None:
    assert (
        "jax"
        in json.loads(smlaunch(["schema"], package_environment).stdout)["properties"]["strategy"]["anyOf"][0][
            "enum"
        ]
    )
    refusal = smlaunch(["plan", "train_jax.py", "--strategy", "jxa", "--local"], package_environment)
    assert "strategy: 'jxa' is unknown, did you mean 'jax'?" in refusal.stderr
    no_image = smlaunch(["plan", "train_jax.py", "--strategy", "jax", "--local"], package_environment)
    assert "image: jax has no image of AWS's to fall back on; name one" in no_image.stderr
