"""The setup of an AWS image that its own entry point would have done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.runtime import image_entry_point
from tests.runtime.host import Host

MakeHost = Callable[..., Host]

versions = st.lists(st.integers(0, 999), min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("driver", "compat", "needed"),
    [
        ("535.183.01", "570.211.01", True),
        ("570.211.01", "570.211.01", False),
        ("580.65.06", "570.211.01", False),
        ("9.0", "10.0", True),
        ("570.211", "570.211.01", True),
        ("535.183.01\n", "570.211.01", True),
        ("", "570.211.01", False),
        ("535.183.01", "", False),
        ("No devices were found", "570.211.01", False),
    ],
)
def test_the_older_driver_needs_help(driver: str, compat: str, needed: bool) -> None:
    assert image_entry_point.needs_forward_compatibility(driver, compat) is needed


@given(versions, versions)
def test_as_sort_by_version_has_it(driver: list[int], compat: list[int]) -> None:
    texts = [".".join(map(str, version)) for version in (driver, compat)]
    assert image_entry_point.needs_forward_compatibility(*texts) is (driver < compat)


@pytest.fixture
def compat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image with a driver of 570 on a machine with one of 535."""
    folder = tmp_path / "compat"
    folder.mkdir()
    (folder / "libcuda.so.570.211.01").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.570.211.01")
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
        "GCC version:  gcc version 12.2.0\n"
    )
    monkeypatch.setattr(image_entry_point, "CUDA_COMPAT_DIR", str(folder))
    monkeypatch.setattr(image_entry_point, "_NVIDIA_VERSION_FILE", str(version))
    return folder


def test_it_goes_before_what_is_there(compat: Path) -> None:
    assert image_entry_point.cuda_compat_variables({}) == {"LD_LIBRARY_PATH": str(compat)}
    assert image_entry_point.cuda_compat_variables({"LD_LIBRARY_PATH": "/a:/b"}) == {
        "LD_LIBRARY_PATH": f"{compat}:/a:/b"
    }
    assert image_entry_point.cuda_compat_variables({"LD_LIBRARY_PATH": f"/a:{compat}"}) == {}


@pytest.mark.parametrize("kind", ["x86_64", "Open"])
def test_the_kernel_module_says_its_version(compat: Path, kind: str) -> None:
    contents = {
        "x86_64": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:19:40 UTC 2025\n",
        "Open": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
    }
    Path(image_entry_point._NVIDIA_VERSION_FILE).write_text(contents[kind])
    assert image_entry_point._read_driver_version() == "580.65.06"
    assert image_entry_point.cuda_compat_variables({}) == {}


def test_without_a_driver_nothing_is_done(compat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(image_entry_point._NVIDIA_VERSION_FILE).unlink()
    monkeypatch.setenv("PATH", "")
    assert image_entry_point.cuda_compat_variables({}) == {}


def test_the_vendors_tool_is_asked_next(
    compat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(image_entry_point._NVIDIA_VERSION_FILE).unlink()
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 535.183.01\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image_entry_point.cuda_compat_variables({}) == {"LD_LIBRARY_PATH": str(compat)}


AS_CONTAINER = """
set -e
mount --bind "$0" /etc/hosts
mount --bind "$1" /opt
hostname container-4711
shift
unset SMLAUNCH_ML_ROOT
exec unshare --pid --fork --kill-child --mount-proc "$@"
"""


@pytest.mark.root
@pytest.mark.parametrize("writable", [True, False])
def test_the_containers_own_name_resolves(make_host: MakeHost, tmp_path: Path, writable: bool) -> None:
    """The runtime is the first process, at /opt/ml, with a private /etc/hosts that has algo-1 only."""
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n127.0.9.9 algo-1")
    if not writable:
        os.chmod(hosts, 0o444)
    script = (
        AS_CONTAINER
        if writable
        else AS_CONTAINER.replace("hostname", "mount -o remount,bind,ro /etc/hosts\nhostname")
    )
    train = "import socket\nprint(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
    wrapper = ("unshare", "--mount", "--uts", "sh", "-c", script, str(hosts), str(tmp_path))
    result = make_host(train, wrapper=wrapper).run()
    if writable:
        assert result.lines == ["[0] container-4711 127.0.9.9"], result.stderr
        assert hosts.read_text().endswith("\n127.0.9.9\tcontainer-4711\n")
    else:
        assert "container-4711 does not resolve, and /etc/hosts cannot be changed: " in result.stderr
    assert "container-4711" not in Path("/etc/hosts").read_text()


def test_a_machines_own_file_is_not_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.touch()
    monkeypatch.setattr(image_entry_point, "_HOSTS_FILE", str(hosts))
    system = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((system[0], "nobody.invalid", *system[2:])))
    assert image_entry_point.ensure_hostname_resolves("localhost", {}) is None
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert image_entry_point.ensure_hostname_resolves("localhost", {"SMLAUNCH_ML_ROOT": "/x"}) is None
    assert hosts.read_text() == ""
    assert image_entry_point.ensure_hostname_resolves("localhost", {}) is None
    assert hosts.read_text() == "\n127.0.0.1\tnobody.invalid\n"
