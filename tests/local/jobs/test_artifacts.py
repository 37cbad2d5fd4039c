from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import artifact_upload
from smlaunch.local.jobs.artifact_upload import UploadError
from smlaunch.local.jobs.job_spec import S3Location
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.conftest import spec


def write(host: JobHost, name: str, text: str) -> Path:
    path = host.opt_ml_folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def upload(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path, **changes: Any
) -> tuple[str, list[str]]:
    notes: list[str] = []
    settings = Settings(**changes.pop("settings", {}))
    address = artifact_upload.upload_training_output(
        spec(**changes),
        hosts,
        objects,
        settings,
        tmp_path,
        lambda label, text: notes.append(f"{label}: {text}"),
    )
    return address, notes


def archive(objects: ObjectStore, key: str) -> dict[str, str]:
    with tarfile.open(objects.object_body_path("data", key)) as tar:
        files = (member for member in tar if member.isfile())
        return {member.name: tar.extractfile(member).read().decode() for member in files}  # type: ignore[union-attr]


def keys(objects: ObjectStore) -> list[str]:
    return [entry.key for entry in objects.list_objects("data")]


def test_all_hosts_are_merged_and_clashes_told(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    write(hosts[0], "model/same", "of algo-1")
    write(hosts[1], "model/same", "of algo-2")
    write(hosts[1], "model/deep/own", "only here")
    write(hosts[1], "output/data/log.txt", "out")
    address, notes = upload(objects, hosts, tmp_path)
    assert address == "s3://data/out/job/output/model.tar.gz"
    assert archive(objects, "out/job/output/model.tar.gz") == {"same": "of algo-1", "deep/own": "only here"}
    assert archive(objects, "out/job/output/output.tar.gz") == {"log.txt": "out"}
    assert len(notes) == 1
    assert notes[0].startswith("algo-2: model/same exists on algo-1 too")


def test_without_compression_files_are_objects(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    write(hosts[0], "model/a/b", "x")
    output = {"S3OutputPath": "s3://data/out/", "CompressionType": "NONE"}
    address, _ = upload(objects, hosts, tmp_path, OutputDataConfig=output)
    assert address == "s3://data/out/job/output/model/"
    assert keys(objects) == ["out/job/output/model/a/b"]


@pytest.mark.parametrize("empty", [True, False])
def test_what_an_empty_directory_leaves_is_a_setting(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path, empty: bool
) -> None:
    upload(objects, hosts, tmp_path, settings={"upload_empty_model": empty, "upload_empty_output": empty})
    expected = ["out/job/output/model.tar.gz", "out/job/output/output.tar.gz"]
    assert keys(objects) == (expected if empty else [])


def test_links_are_kept_and_sockets_left(objects: ObjectStore, hosts: list[JobHost], tmp_path: Path) -> None:
    model = write(hosts[0], "model/real", "x").parent
    (model / "link").symlink_to("real")
    os.mkfifo(model / "pipe")
    upload(objects, hosts, tmp_path)
    with tarfile.open(objects.object_body_path("data", "out/job/output/model.tar.gz")) as tar:
        assert {member.name: member.linkname for member in tar} == {"real": "", "link": "real"}


def test_a_bucket_that_does_not_exist(objects: ObjectStore, hosts: list[JobHost], tmp_path: Path) -> None:
    with pytest.raises(UploadError, match=r"OutputDataConfig.S3OutputPath, absent, does not exist"):
        upload(objects, hosts, tmp_path, OutputDataConfig={"S3OutputPath": "s3://absent/x"})


UNCOMPRESSED = {"S3OutputPath": "s3://data/out/", "CompressionType": "NONE"}


def test_a_name_that_is_no_key_fails_the_job_and_keeps_no_other_file(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    write(hosts[0], "model/a", "x")
    write(hosts[1], "model/b", "x")
    (hosts[0].opt_ml_folder / "model" / os.fsdecode(b"odd-\xff")).write_text("x")
    (hosts[1].opt_ml_folder / "model" / "link").symlink_to("b")
    os.mkfifo(hosts[1].opt_ml_folder / "model" / "pipe")
    notes: list[str] = []
    arguments = (hosts, objects, Settings(), tmp_path, lambda label, text: notes.append(f"{label}: {text}"))
    lost = "/opt/ml/model/odd-\\xff cannot be stored: its name is not UTF-8, and S3 has no other keys"
    with pytest.raises(UploadError) as raised:
        artifact_upload.upload_training_output(spec(OutputDataConfig=UNCOMPRESSED), *arguments)
    assert str(raised.value) == f"Artifact upload failed:{lost} (algo-1)"
    assert keys(objects) == ["out/job/output/model/a", "out/job/output/model/b"]
    assert sorted(notes) == [
        f"algo-1: {lost}",
        "algo-2: model/link is a symbolic link: it is not uploaded",
        "algo-2: model/pipe is a FIFO: it is not uploaded",
    ]
    # Names in an archive may have any bytes.
    artifact_upload.upload_training_output(spec(), *arguments)
    assert archive(objects, "out/job/output/model.tar.gz") == {"a": "x", "b": "x", "odd-\udcff": "x"}


@pytest.mark.parametrize("link", ["model", "output", "output/data"])
def test_a_directory_behind_a_link_fails_the_job(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path, link: str
) -> None:
    secret = tmp_path / "secret"
    (secret / "data").mkdir(parents=True)
    (secret / "key").write_text("of this machine")
    (secret / "data" / "key").write_text("of this machine")
    write(hosts[1], "model/weights", "x")
    (hosts[0].opt_ml_folder / link).parent.mkdir(parents=True)
    (hosts[0].opt_ml_folder / link).symlink_to(secret)
    with pytest.raises(UploadError, match="lies behind a symbolic link, which is not followed"):
        upload(objects, hosts, tmp_path)
    assert archive(objects, "out/job/output/model.tar.gz") == {"weights": "x"}
    assert keys(objects) == ["out/job/output/model.tar.gz"]


def test_a_file_that_fails_in_the_middle_is_not_in_the_archive_and_all_others_are(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    for name in "abc":
        write(hosts[0], f"model/{name}", name * 100_000)
    (hosts[0].opt_ml_folder / "model" / "l").symlink_to("a")
    merged = artifact_upload.merge_host_folders(hosts, "model", lambda *_: None)
    for name in ("b", "l"):  # the files have been replaced since
        (hosts[0].opt_ml_folder / "model" / name).unlink()
    os.mkfifo(hosts[0].opt_ml_folder / "model" / "b")
    write(hosts[0], "model/l", "x")
    notes: list[str] = []
    lost = artifact_upload._upload_archive(
        merged.entry_by_path,
        "model",
        objects,
        S3Location("data", "key"),
        tmp_path,
        lambda label, text: notes.append(text),
    )
    assert [text.removesuffix(" (algo-1)") for text in lost] == notes
    assert "/opt/ml/model/b cannot be stored: it is a FIFO" in notes
    assert len(notes) == 2
    assert archive(objects, "key.tar.gz") == {name: name * 100_000 for name in "ac"}


def test_a_file_that_became_shorter_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("12345")
    with (tmp_path / "file").open("rb") as file:
        source = artifact_upload._EntryReader("file", file.fileno())
        assert source.read(3) == b"123"
        with pytest.raises(artifact_upload._UnreadableEntry) as raised:
            source.read(3)
    assert "shorter" in str(raised.value.error)
