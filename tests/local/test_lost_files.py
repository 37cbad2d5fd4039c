"""Files that a script writes where nothing is uploaded from: they are named and kept."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import lost_files
from smlaunch.local.jobs.artifact_upload import RESULT_FOLDERS as FOLDERS
from smlaunch.local.jobs.lost_files import save_lost_files, save_replaced_files


def make_host(folder: Path, name: str = "algo-1") -> JobHost:
    """A host that has ended: its source was unpacked before its ranks started."""
    ml = folder / name / "ml"
    for path in (
        "input/config/resourceconfig.json",
        "code/train.py",
        "smlaunch/importable/smlaunch/__init__.py",
    ):
        (ml / path).parent.mkdir(parents=True, exist_ok=True)
        (ml / path).write_text("x")
        os.utime(ml / path, (1000, 1000))
    (ml / "model").mkdir()
    (folder / name / "tmp").mkdir()
    return JobHost(name, name, "127.0.0.2", ml, "/opt/ml")


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_new_files_are_named_and_kept(tmp_path: Path) -> None:
    host, storage = make_host(tmp_path), tmp_path / "kept" / "job"
    write(host.opt_ml_folder / "code/out/model.pt", "weights")
    write(host.opt_ml_folder.parent / "tmp/results/scores.csv", "1,2")
    write(host.opt_ml_folder.parent / "tmp/tmpab12cd34/part", "temporary")
    write(host.opt_ml_folder / "code/__pycache__/train.pyc", "code")
    warning = save_lost_files([host], storage)
    assert (
        "/opt/ml/code/out/model.pt (7 bytes, algo-1), /tmp/results/scores.csv (3 bytes, algo-1)." in warning
    )
    assert "SM_MODEL_DIR" in warning and warning.endswith(f"All are kept in {storage}")
    folders = [storage.parent, *(path for path in storage.parent.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert (storage / "algo-1/opt/ml/code/out/model.pt").read_text() == "weights"
    assert (storage / "algo-1/tmp/results/scores.csv").read_text() == "1,2"
    assert sorted(path.name for path in storage.rglob("*") if path.is_file()) == ["model.pt", "scores.csv"]


def test_nothing_is_said_of_a_run_with_a_model(tmp_path: Path) -> None:
    host, other = make_host(tmp_path), make_host(tmp_path, "algo-2")
    write(host.opt_ml_folder / "code/out/model.pt", "weights")
    write(other.opt_ml_folder / "model/model.pt", "weights")
    assert save_lost_files([host, other], tmp_path / "kept") == ""
    assert not (tmp_path / "kept").exists()


def test_hostile_files_are_neither_followed_nor_kept(tmp_path: Path) -> None:
    host, storage = make_host(tmp_path), tmp_path / "kept"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = host.opt_ml_folder / "code"
    (code / "link").symlink_to(secret)
    (code / "folder").symlink_to(tmp_path)
    os.link(secret, code / "hard")
    os.mkfifo(code / "fifo")
    write(code / "a\x1b[2J\nb", "odd")
    warning = save_lost_files([host], storage)
    assert "/opt/ml/code/a\\x1b[2J\\nb (3 bytes, algo-1)." in warning
    assert [path.read_text() for path in storage.rglob("*") if stat.S_ISREG(path.lstat().st_mode)] == ["odd"]


def test_size_and_number_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, storage = make_host(tmp_path), tmp_path / "kept"
    for number in range(30):
        write(host.opt_ml_folder / f"code/{number:02}.bin", "x" * 10)
    monkeypatch.setattr(lost_files, "MAX_SAVED_BYTES", 100)
    warning = save_lost_files([host], storage)
    assert " and 20 more. " in warning and "10 of 30 are kept in " in warning
    assert len(list(storage.rglob("*.bin"))) == 10


def test_results_that_another_hosts_file_replaces_are_named_and_kept(tmp_path: Path) -> None:
    hosts, storage = [make_host(tmp_path, f"algo-{number}") for number in (1, 2, 3)], tmp_path / "kept"
    for host in hosts:
        write(host.opt_ml_folder / "model/same.bin", "the same on all hosts")
        write(host.opt_ml_folder / f"model/{host.name}.bin", host.name)
    write(hosts[1].opt_ml_folder / "model/sub/w.npy", "second")
    write(hosts[2].opt_ml_folder / "model/sub/w.npy", "third!")
    write(hosts[0].opt_ml_folder / "output/data/log", "short")
    write(hosts[2].opt_ml_folder / "output/data/log", "longer")
    (hosts[0].opt_ml_folder / "model/link").symlink_to(tmp_path)
    write(hosts[1].opt_ml_folder / "model/link", "x")
    warning = save_replaced_files(hosts, FOLDERS, storage)
    named = warning.partition("Not uploaded: ")[2].partition(". Give")[0].split("), ")
    assert sorted(name.rstrip(")") for name in named) == [
        "/opt/ml/model/link (1 byte, algo-2",
        "/opt/ml/model/sub/w.npy (6 bytes, algo-3",
        "/opt/ml/output/data/log (6 bytes, algo-3",
    ]
    assert warning.startswith("warning: ") and warning.endswith(f"All are kept in {storage}")
    assert (storage / "algo-3/opt/ml/model/sub/w.npy").read_text() == "third!"
    assert save_replaced_files(hosts[:2], FOLDERS, storage).count("algo-") == 1  # the link alone
    assert save_replaced_files(hosts[:1], FOLDERS, storage) == ""
