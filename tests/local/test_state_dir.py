"""Ownership of the state directory: its programs run with the rights of the user who uses it."""

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
from smlaunch.local import background_endpoint, path_ownership
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.state_dir import StateDir
from tests.conftest import ROOT
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import endpoint_harness

OWN_UID = os.geteuid()
OTHER_UID = OWN_UID + 1
STRANGER_UID = 1234
FOLDERS = ("s3", "logs", "hosts", "owners", "unsaved")
DATABASES = ("jobs.sqlite", "pipelines.sqlite", "metrics.sqlite")
FILES = ("endpoint.json", "endpoint.lock", "endpoint.log", "moto.log", "levels.json", "engine.json")
ENTRIES = (*FOLDERS, *DATABASES, *FILES, "credentials.json")
"""They decide about programs and data of jobs, pids that get signals, and the container engine's program."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_device_is_no_folder_whose_mode_is_to_be_changed() -> None:
    message = refusal_message(Path("/dev/null"))
    assert "Not a directory" in message and "chmod" not in message


def refusal_message(home: Path, user: int = OWN_UID) -> str:
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
    assert "belongs to" in refusal_message(tmp_path / "home", OTHER_UID)


@pytest.mark.parametrize("writers", [0o702, 0o722, 0o777, 0o1777])
@pytest.mark.parametrize("name", ["home", "."])
def test_a_folder_that_others_may_write(tmp_path: Path, name: str, writers: int) -> None:
    StateDir(tmp_path / "home")
    (tmp_path / name).chmod(writers)
    if name == "." and writers & stat.S_ISVTX:
        StateDir(tmp_path / "home")  # as in /tmp: the entries are this user's own
        return
    message = refusal_message(tmp_path / "home")
    assert f"{(tmp_path / name).resolve()} can be written by everybody" in message
    assert "chmod o-w" in message


def test_only_a_private_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A umask of 002 is usual where every user has a private group."""
    import grp
    import pwd

    StateDir(tmp_path / "home")
    (tmp_path / "home").chmod(0o770)
    own_user = pwd.struct_passwd(("me", "x", OWN_UID, tmp_path.stat().st_gid, "", "/", "/bin/sh"))
    other_user = pwd.struct_passwd(("him", "x", STRANGER_UID, STRANGER_UID, "", "/", "/bin/sh"))
    gid = tmp_path.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: own_user)
    monkeypatch.setattr(pwd, "getpwall", lambda: [own_user, other_user])
    for members, allowed in (([], True), (["me"], True), (["me", "him"], False), (["him"], False)):
        monkeypatch.setattr(grp, "getgrgid", lambda g, m=members: grp.struct_group(("staff", "x", gid, m)))
        if allowed:
            StateDir(tmp_path / "home")
        else:
            message = refusal_message(tmp_path / "home")
            assert "group staff" in message
            assert "chmod g-w" in message
    monkeypatch.setattr(grp, "getgrgid", lambda g: grp.struct_group(("staff", "x", gid, [])))
    group_member = pwd.struct_passwd(("him", "x", STRANGER_UID, gid, "", "/", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [own_user, group_member])
    assert "group staff" in refusal_message(tmp_path / "home")


USER, GROUP = 0x02, 0x08


def give_acl(path: Path, *entries: tuple[int, int, int], mask: int = 7) -> None:
    """Set an access control list. ``entries``: (tag, rights, id), added to the four standard entries."""
    nobody = 0xFFFFFFFF
    all_of_them = sorted([(1, 7, nobody), *entries, (4, 0, nobody), (16, mask, nobody), (32, 0, nobody)])
    packed = b"".join(struct.pack("<HHI", *entry) for entry in all_of_them)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)


@pytest.mark.parametrize("name", ["home", ".", "home/s3", "home/jobs.sqlite"])
@pytest.mark.parametrize(
    "entry", [(USER, 7, STRANGER_UID), (USER, 2, STRANGER_UID), (GROUP, 7, STRANGER_UID)]
)
def test_an_acl_that_lets_other_users_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, entry: tuple[int, int, int]
) -> None:
    """The mode shows the list's mask as the group's rights, and the group may be the user's private one."""
    monkeypatch.setattr(
        path_ownership, "_is_private_group", lambda group, user: group == tmp_path.stat().st_gid
    )
    StateDir(tmp_path / "home")
    (tmp_path / "home").chmod(0o755)
    (tmp_path / "home/jobs.sqlite").touch(0o600)
    path = tmp_path / name
    give_acl(path, entry)
    message = refusal_message(tmp_path / "home")
    writer_kind = "uid" if entry[0] == USER else "group id"
    assert (
        f"{path.resolve()} can be written by {writer_kind} {STRANGER_UID}, by an access control list"
        in message
    )
    suggested_command = re.findall(r"`(chmod[^`]+)`", message)[0]
    subprocess.run(["sh", "-c", suggested_command], check=True)
    StateDir(tmp_path / "home")


@pytest.mark.parametrize(
    ("entries", "mask"),
    [
        ([(USER, 7, STRANGER_UID)], 5),  # the mask removes the right
        ([(USER, 5, STRANGER_UID), (GROUP, 5, STRANGER_UID)], 7),
        ([(USER, 7, OWN_UID), (USER, 7, 0)], 7),
    ],
)
def test_an_acl_that_lets_no_other_user_write(
    tmp_path: Path, entries: list[tuple[int, int, int]], mask: int
) -> None:
    StateDir(tmp_path / "home")
    give_acl(tmp_path / "home", *dict.fromkeys(entries), mask=mask)
    StateDir(tmp_path / "home")


def test_a_state_directory_that_inherits_an_acl(tmp_path: Path) -> None:
    """As on a shared disk: mkdir gives other users the inherited rights, whatever the umask."""
    give_acl(tmp_path, (USER, 7, STRANGER_UID), mask=5)
    inherited = os.getxattr(tmp_path, "system.posix_acl_access")
    default = inherited.replace(
        struct.pack("<HHI", 16, 5, 0xFFFFFFFF), struct.pack("<HHI", 16, 7, 0xFFFFFFFF)
    )
    os.setxattr(tmp_path, "system.posix_acl_default", default)
    (tmp_path / "home").mkdir()
    assert f"uid {STRANGER_UID}" in refusal_message(tmp_path / "home")
    StateDir(tmp_path / "made")  # created by smlaunch: for its owner alone
    assert mode(tmp_path / "made") == 0o700


def test_links_in_the_path_are_followed_and_checked(tmp_path: Path) -> None:
    StateDir(tmp_path / "real/home")
    (tmp_path / "link").symlink_to("real/../real")
    (tmp_path / "home").symlink_to(tmp_path / "link/home")
    StateDir(tmp_path / "home")
    (tmp_path / "real").chmod(0o777)
    assert f"{tmp_path.resolve() / 'real'} can be written" in refusal_message(tmp_path / "home")
    (tmp_path / "loop").symlink_to("loop")
    refusal_message(tmp_path / "loop")


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
    assert f"{name} can be written by everybody" in refusal_message(home)
    home.chmod(0o700)  # other users cannot reach the entry
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
    assert "elsewhere can be written by everybody" in refusal_message(home)


def test_files_in_an_open_state_directory_are_private() -> None:
    """After a job, which wrote databases, logs, objects and files of hosts."""
    with endpoint_harness("plain") as harness:
        harness.home.mkdir(mode=0o755)
        shutil.chown(harness.home, harness.home.parent.stat().st_uid, harness.home.parent.stat().st_gid)
        (harness.home / "s3").mkdir(mode=0o755)
        shutil.chown(harness.home / "s3", harness.home.stat().st_uid, harness.home.stat().st_gid)
        before = os.umask(0)
        try:
            client = EndpointClient(harness.start())
            assert client.run("job", "print(1)")["TrainingJobStatus"] == "Completed"
        finally:
            os.umask(before)
        open_to_others = [path.name for path in harness.home.iterdir() if mode(path) & 0o077]
        assert open_to_others == []
        assert mode(harness.home) == 0o755
        assert {"jobs.sqlite", "metrics.sqlite", "credentials.json", "s3"} <= set(os.listdir(harness.home))


@pytest.fixture
def shared_dir() -> Iterator[Path]:
    """A directory like /tmp: all users may write, none may replace another's files."""
    folder = Path(tempfile.mkdtemp(prefix="sml-test-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.root
@pytest.mark.parametrize("name", ["", *ENTRIES])
def test_root_runs_no_files_of_another_user(shared_dir: Path, name: str) -> None:
    home = shared_dir / "home"
    StateDir(home)
    entry = home / name
    if not entry.exists():
        entry.write_text("{}")
    shutil.chown(entry, STRANGER_UID, STRANGER_UID)
    message = refusal_message(home)
    assert f"{home / name} belongs to uid {STRANGER_UID}" in message
    with pytest.raises(EndpointError):
        background_endpoint.running_endpoint(home)


@pytest.mark.root
def test_a_link_of_another_user_is_not_followed(shared_dir: Path) -> None:
    StateDir(shared_dir / "root's")
    (shared_dir / "home").symlink_to("root's")
    os.lchown(shared_dir / "home", STRANGER_UID, STRANGER_UID)
    assert f"{shared_dir / 'home'} belongs to uid {STRANGER_UID}" in refusal_message(shared_dir / "home")


@pytest.mark.root
@pytest.mark.parametrize("words", [["local", "start"], ["local", "status"], ["local", "stop"]])
def test_the_command_reports_cause_and_remedy(shared_dir: Path, words: list[str]) -> None:
    """An address file of another user would let `stop` end a process that this user chose."""
    home = shared_dir / "home"
    StateDir(home)
    victim = subprocess.Popen(["sleep", "60"])
    try:
        info = EndpointInfo("http://127.0.0.1:1", *["x"] * 6, victim.pid, "plain", "processes", str(home))
        (home / "endpoint.json").write_bytes(info.to_json())
        for path in (home, *home.iterdir()):
            shutil.chown(path, STRANGER_UID, STRANGER_UID)
        result = subprocess.run(
            [sys.executable, "-m", "smlaunch.cli.main", *words],
            env={
                **os.environ,
                "SMLAUNCH_HOME": str(home),
                "SUDO_UID": str(STRANGER_UID),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
        )
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
    assert result.returncode == EXIT_MACHINE, result
    assert "without sudo" in result.stderr
    assert "Traceback" not in result.stderr


def test_doctor_reports_it(tmp_path: Path) -> None:
    StateDir(tmp_path / "home")
    (tmp_path / "home").chmod(0o777)
    result = subprocess.run(
        [sys.executable, "-m", "smlaunch.cli.main", "doctor", "--json"],
        env={**os.environ, "SMLAUNCH_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    (check,) = (one for one in json.loads(result.stdout)["checks"] if one["name"] == "state directory")
    assert check["verdict"] == "missing"
    assert "can be written by everybody" in check["text"]


def test_what_a_link_leads_to_keeps_its_rights(tmp_path: Path) -> None:
    """It may be any folder of this machine."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o755)
    disk.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "logs").symlink_to(disk)
    StateDir(home)
    assert stat.S_IMODE(disk.stat().st_mode) == 0o755
