from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.executors.base import Place
from smlaunch.local.jobs import artifacts
from smlaunch.local.jobs.artifacts import UploadError
from smlaunch.local.objects import ObjectStore
from smlaunch.local.settings import Settings
from tests.local.jobs.conftest import spec


def write(place: Place, name: str, text: str) -> Path:
    path = place.tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def upload(
    objects: ObjectStore, places: list[Place], tmp_path: Path, **changes: Any
) -> tuple[str, list[str]]:
    notes: list[str] = []
    settings = Settings(**changes.pop("settings", {}))
    address = artifacts.upload(
        spec(**changes),
        places,
        objects,
        settings,
        tmp_path,
        lambda label, text: notes.append(f"{label}: {text}"),
    )
    return address, notes


def archive(objects: ObjectStore, key: str) -> dict[str, str]:
    with tarfile.open(objects.path("data", key)) as tar:
        files = (member for member in tar if member.isfile())
        return {member.name: tar.extractfile(member).read().decode() for member in files}  # type: ignore[union-attr]


def keys(objects: ObjectStore) -> list[str]:
    return [entry.key for entry in objects.list("data")]


def test_all_hosts_are_merged_and_clashes_told(
    objects: ObjectStore, places: list[Place], tmp_path: Path
) -> None:
    write(places[0], "model/same", "of algo-1")
    write(places[1], "model/same", "of algo-2")
    write(places[1], "model/deep/own", "only here")
    write(places[1], "output/data/log.txt", "out")
    address, notes = upload(objects, places, tmp_path)
    assert address == "s3://data/out/job/output/model.tar.gz"
    assert archive(objects, "out/job/output/model.tar.gz") == {"same": "of algo-1", "deep/own": "only here"}
    assert archive(objects, "out/job/output/output.tar.gz") == {"log.txt": "out"}
    assert len(notes) == 1
    assert notes[0].startswith("algo-2: model/same exists on algo-1 too")


def test_without_compression_files_are_objects(
    objects: ObjectStore, places: list[Place], tmp_path: Path
) -> None:
    write(places[0], "model/a/b", "x")
    output = {"S3OutputPath": "s3://data/out/", "CompressionType": "NONE"}
    address, _ = upload(objects, places, tmp_path, OutputDataConfig=output)
    assert address == "s3://data/out/job/output/model/"
    assert keys(objects) == ["out/job/output/model/a/b"]


@pytest.mark.parametrize("empty", [True, False])
def test_what_an_empty_directory_leaves_is_a_setting(
    objects: ObjectStore, places: list[Place], tmp_path: Path, empty: bool
) -> None:
    upload(objects, places, tmp_path, settings={"upload_empty_model": empty, "upload_empty_output": empty})
    expected = ["out/job/output/model.tar.gz", "out/job/output/output.tar.gz"]
    assert keys(objects) == (expected if empty else [])


def test_links_are_kept_and_sockets_left(objects: ObjectStore, places: list[Place], tmp_path: Path) -> None:
    import os

    model = write(places[0], "model/real", "x").parent
    (model / "link").symlink_to("real")
    os.mkfifo(model / "pipe")
    upload(objects, places, tmp_path)
    with tarfile.open(objects.path("data", "out/job/output/model.tar.gz")) as tar:
        assert {member.name: member.linkname for member in tar} == {"real": "", "link": "real"}


def test_a_bucket_that_does_not_exist(objects: ObjectStore, places: list[Place], tmp_path: Path) -> None:
    with pytest.raises(UploadError, match=r"OutputDataConfig.S3OutputPath, absent, does not exist"):
        upload(objects, places, tmp_path, OutputDataConfig={"S3OutputPath": "s3://absent/x"})
