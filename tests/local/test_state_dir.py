"""Whose state directory is used: what stands in it is run with the rights of whoever uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.errors import EXIT_MACHINE, EndpointError
from smlaunch.local import daemon, path_ownership
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.state_dir import StateDir
from tests.conftest import ROOT
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import endpoint_harness

ME = os.geteuid()
OTHER = ME + 1
STRANGER = 1234
FOLDERS = ("s3", "logs", "hosts", "owners", "unsaved")
DATABASES = ("jobs.sqlite", "pipelines.sqlite", "metrics.sqlite")
FILES = ("endpoint.json", "endpoint.lock", "endpoint.log", "moto.log", "levels.json", "engine.json")
ENTRIES = (*FOLDERS, *DATABASES, *FILES, "credentials.json")
"""Programs and data of jobs, which jobs there are, whom to signal, which program is a container engine."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def refusal(home: Path, user: int = ME) -> str:
    with pytest.raises(EndpointError) as refused:
        StateDir(home, user)
    assert refused.value.exit_code == EXIT_MACHINE
    assert "SMLAUNCH_HOME" in str(refused.value)
    return str(refused.value)


def test_a_missing_state_directory_is_created_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        StateDir(tmp_path / "a/b/home")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/home")] == [0o700] * 3


def test_a_state_directory_of_another_user(tmp_path: Path) -> None:
    StateDir(tmp_path / "home")
    assert "belongs to" in refusal(tmp_path / "home", OTHER)


@pytest.mark.parametrize("writers", [0o702, 0o722, 0o777, 0o1777])
@pytest.mark.parametrize("which", ["home", "."])
def test_a_folder_that_others_may_write(tmp_path: Path, which: str, writers: int) -> None:
    StateDir(tmp_path / "home")
    (tmp_path / which).chmod(writers)
    if which == "." and writers & stat.S_ISVTX:
        StateDir(tmp_path / "home")  # as in /tmp: only what is there counts, which is ours
        return
    said = refusal(tmp_path / "home")
    assert f"{(tmp_path / which).resolve()} can be written by everybody" in said
    assert "chmod o-w" in said


def test_only_a_private_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A umask of 002 is the rule where every user has a group of his own."""
    import grp
    import pwd

    StateDir(tmp_path / "home")
    (tmp_path / "home").chmod(0o770)
    mine = pwd.struct_passwd(("me", "x", ME, tmp_path.stat().st_gid, "", "/", "/bin/sh"))
    his = pwd.struct_passwd(("him", "x", STRANGER, STRANGER, "", "/", "/bin/sh"))
    gid = tmp_path.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: mine)
    monkeypatch.setattr(pwd, "getpwall", lambda: [mine, his])
    for members, allowed in (([], True), (["me"], True), (["me", "him"], False), (["him"], False)):
        monkeypatch.setattr(grp, "getgrgid", lambda g, m=members: grp.struct_group(("staff", "x", gid, m)))
        if allowed:
            StateDir(tmp_path / "home")
        else:
            said = refusal(tmp_path / "home")
            assert "group staff" in said
            assert "chmod g-w" in said
    monkeypatch.setattr(grp, "getgrgid", lambda g: grp.struct_group(("staff", "x", gid, [])))
    flatmate = pwd.struct_passwd(("him", "x", STRANGER, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [mine, flatmate])
    assert "group staff" in refusal(tmp_path / "home")


USER, GROUP = 0x02, 0x08


def give_acl(path: Path, *entries: tuple[int, int, int], mask: int = 7) -> None:
    """``entries``: (tag, rights, number), beside those of the owner, its group, the mask and the others."""
    nobody = 0xFFFFFFFF
    all_of_them = sorted([(1, 7, nobody), *entries, (4, 0, nobody), (16, mask, nobody), (32, 0, nobody)])
    packed = b"".join(struct.pack("<HHI", *entry) for entry in all_of_them)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)


@pytest.mark.parametrize("which", ["home", ".", "home/s3", "home/jobs.sqlite"])
@pytest.mark.parametrize("entry", [(USER, 7, STRANGER), (USER, 2, STRANGER), (GROUP, 7, STRANGER)])
def test_an_acl_that_lets_other_users_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, entry: tuple[int, int, int]
) -> None:
    """The mode shows the list's mask as the group's rights, and the group may be the user's own."""
    monkeypatch.setattr(
        path_ownership, "_is_private_group", lambda group, user: group == tmp_path.stat().st_gid
    )
    StateDir(tmp_path / "home")
    (tmp_path / "home").chmod(0o755)
    (tmp_path / "home/jobs.sqlite").touch(0o600)
    path = tmp_path / which
    give_acl(path, entry)
    said = refusal(tmp_path / "home")
    who = "uid" if entry[0] == USER else "group id"
    assert f"{path.resolve()} can be written by {who} {STRANGER}, by an access control list" in said
    subprocess.run(["sh", "-c", re.findall(r"`(chmod[^`]+)`", said)[0]], check=True)  # the next step it names
    StateDir(tmp_path / "home")


@pytest.mark.parametrize(
    ("entries", "mask"),
    [
        ([(USER, 7, STRANGER)], 5),  # the mask takes it away
        ([(USER, 5, STRANGER), (GROUP, 5, STRANGER)], 7),
        ([(USER, 7, ME), (USER, 7, 0)], 7),
    ],
)
def test_an_acl_that_lets_no_other_user_write(
    tmp_path: Path, entries: list[tuple[int, int, int]], mask: int
) -> None:
    StateDir(tmp_path / "home")
    give_acl(tmp_path / "home", *dict.fromkeys(entries), mask=mask)
    StateDir(tmp_path / "home")


def test_a_state_directory_that_inherits_an_acl(tmp_path: Path) -> None:
    """As on a project's shared disk: a plain mkdir gives the others their rights, whatever the umask."""
    give_acl(tmp_path, (USER, 7, STRANGER), mask=5)
    inherited = os.getxattr(tmp_path, "system.posix_acl_access")
    default = inherited.replace(
        struct.pack("<HHI", 16, 5, 0xFFFFFFFF), struct.pack("<HHI", 16, 7, 0xFFFFFFFF)
    )
    os.setxattr(tmp_path, "system.posix_acl_default", default)
    (tmp_path / "home").mkdir()
    assert f"uid {STRANGER}" in refusal(tmp_path / "home")
    StateDir(tmp_path / "made")  # by smlaunch itself: for its owner alone
    assert mode(tmp_path / "made") == 0o700


def test_links_in_the_path_are_followed_and_checked(tmp_path: Path) -> None:
    StateDir(tmp_path / "real/home")
    (tmp_path / "link").symlink_to("real/../real")
    (tmp_path / "home").symlink_to(tmp_path / "link/home")
    StateDir(tmp_path / "home")
    (tmp_path / "real").chmod(0o777)
    assert f"{tmp_path.resolve() / 'real'} can be written" in refusal(tmp_path / "home")
    (tmp_path / "loop").symlink_to("loop")
    refusal(tmp_path / "loop")


def test_entries_lists_all_files(tmp_path: Path) -> None:
    assert sorted(path.name for path in vars(StateDir(tmp_path / "home")).values()) == sorted(
        ["home", *ENTRIES]
    )


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_other_users_may_write(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    entry = home / name
    StateDir(home)
    if not entry.exists():
        entry.write_text("{}")
    home.chmod(0o755)
    entry.chmod(0o777)
    assert f"{name} can be written by everybody" in refusal(home)
    home.chmod(0o700)  # nobody could reach it
    StateDir(home)
    assert mode(entry) == 0o700


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_that_links_to_a_folder_of_other_users(tmp_path: Path, name: str) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    StateDir(home)
    elsewhere.mkdir()
    target = elsewhere / name
    if name in FOLDERS:
        (home / name).rename(target)
    else:
        (home / name).unlink(missing_ok=True)
        target.write_text("")
    (home / name).symlink_to(target)
    StateDir(home)
    elsewhere.chmod(0o777)
    assert "elsewhere can be written by everybody" in refusal(home)


def test_files_in_an_open_state_directory_are_private() -> None:
    """With a job in it: databases, logs, objects, files of hosts."""
    with endpoint_harness("plain") as ground:
        ground.home.mkdir(mode=0o755)
        shutil.chown(ground.home, ground.home.parent.stat().st_uid, ground.home.parent.stat().st_gid)
        (ground.home / "s3").mkdir(mode=0o755)
        shutil.chown(ground.home / "s3", ground.home.stat().st_uid, ground.home.stat().st_gid)
        before = os.umask(0)
        try:
            client = EndpointClient(ground.start())
            assert client.run("job", "print(1)")["TrainingJobStatus"] == "Completed"
        finally:
            os.umask(before)
        open_to_others = [path.name for path in ground.home.iterdir() if mode(path) & 0o077]
        assert open_to_others == []
        assert mode(ground.home) == 0o755
        assert {"jobs.sqlite", "metrics.sqlite", "credentials.json", "s3"} <= set(os.listdir(ground.home))


@pytest.fixture
def shared() -> Iterator[Path]:
    """As /tmp: everybody may write, nobody may replace what is another's."""
    folder = Path(tempfile.mkdtemp(prefix="sml-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.root
@pytest.mark.parametrize("name", ["", *ENTRIES])
def test_root_runs_no_files_of_another_user(shared: Path, name: str) -> None:
    home = shared / "home"
    StateDir(home)
    entry = home / name
    if not entry.exists():
        entry.write_text("{}")
    shutil.chown(entry, STRANGER, STRANGER)
    said = refusal(home)
    assert f"{home / name} belongs to uid {STRANGER}" in said
    with pytest.raises(EndpointError):
        daemon.status(home)


@pytest.mark.root
def test_a_link_of_another_user_is_not_followed(shared: Path) -> None:
    StateDir(shared / "root's")
    (shared / "home").symlink_to("root's")
    os.lchown(shared / "home", STRANGER, STRANGER)
    assert f"{shared / 'home'} belongs to uid {STRANGER}" in refusal(shared / "home")


@pytest.mark.root
@pytest.mark.parametrize("words", [["local", "start"], ["local", "status"], ["local", "stop"]])
def test_the_command_reports_cause_and_remedy(shared: Path, words: list[str]) -> None:
    """A stranger's address would have `stop` end a process of his choice."""
    home = shared / "home"
    StateDir(home)
    victim = subprocess.Popen(["sleep", "60"])
    try:
        info = EndpointInfo("http://127.0.0.1:1", *["x"] * 6, victim.pid, "plain", "processes", str(home))
        (home / "endpoint.json").write_bytes(info.to_json())
        for path in (home, *home.iterdir()):
            shutil.chown(path, STRANGER, STRANGER)
        done = subprocess.run(
            [sys.executable, "-m", "smlaunch.cli.main", *words],
            env={
                **os.environ,
                "SMLAUNCH_HOME": str(home),
                "SUDO_UID": str(STRANGER),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
        )
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    assert done.returncode == EXIT_MACHINE, done
    assert "without sudo" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_reports_it(tmp_path: Path) -> None:
    StateDir(tmp_path / "home")
    (tmp_path / "home").chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-m", "smlaunch.cli.main", "doctor", "--json"],
        env={**os.environ, "SMLAUNCH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    (check,) = (one for one in json.loads(done.stdout)["checks"] if one["name"] == "state directory")
    assert check["verdict"] == "missing"
    assert "can be written by everybody" in check["text"]
