"""What a job leaves in its directories loses no other file, reads none of this machine, and blocks nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.local.client import Client
from tests.local.grounds import Grounds, grounds

CHECKPOINTS = {"CheckpointConfig": {"S3Uri": "s3://tests/ckpt"}}
WAITING = "while not os.path.exists(ROOT + '/go'): time.sleep(0.01)\n"


@pytest.fixture
def place(level: str) -> Iterator[Grounds]:
    with grounds(level, checkpoint_sync_seconds=0.05) as here:  # which looks for remains, too
        here.start()
        yield here


@pytest.fixture
def client(place: Grounds) -> Client:
    return Client(place.info)


def go_on(place: Grounds, word: str) -> None:
    """To a script that is ``WAITING``."""
    (tree,) = place.home.glob("hosts/*/*/algo-1/ml")
    (tree / word).touch()


def wait_for_key(client: Client, key: str) -> None:
    deadline = time.monotonic() + 30
    while key not in client.keys(key):
        assert time.monotonic() < deadline, client.keys("")
        time.sleep(0.02)


def notes(client: Client, name: str, text: str) -> list[str]:
    return [line for line in client.lines(name)["algo-1"] if line.startswith("[smlaunch] ") and text in line]


def test_no_file_keeps_another_checkpoint_from_s3(client: Client, place: Grounds) -> None:
    script = """
os.chdir(ROOT + "/checkpoints")
os.mkdir("shut")
open("shut/inside", "w").write("shut away")
os.chmod("shut", 0)
os.mkdir("step")
open("step/part", "w").write("1")
open(b"not-utf-8-\\xff", "w").write("x")
open("two\\nlines", "w").write("x")
open("no-one-may-read", "w").write("x")
os.chmod("no-one-may-read", 0)
os.mkfifo("pipe")
socket.socket(socket.AF_UNIX).bind("socket")
os.symlink("/etc/passwd", "link")
for _ in range(6):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
open("deep", "w")
os.chdir(ROOT + "/checkpoints")
open("first", "w").write("1")
"""
    later = "os.chmod('step', 0)\nopen('second', 'w').write('2')\n" + WAITING.replace("/go", "/go-on")
    client.create("odd", script + WAITING + later, **CHECKPOINTS)
    wait_for_key(client, "ckpt/first")
    wait_for_key(client, "ckpt/step/part")
    go_on(place, "go")
    wait_for_key(client, "ckpt/second")
    assert client.keys("ckpt/step/") == ["ckpt/step/part"], "what is shut away has not been deleted"
    go_on(place, "go-on")
    job = client.wait("odd")
    assert (job["TrainingJobStatus"], job.get("FailureReason")) == ("Completed", None)
    assert set(client.keys("ckpt/")) == {
        f"ckpt/{name}"
        for name in ("first", "second", "step/part", "shut/inside", "two\nlines", "no-one-may-read")
    }
    for name, cause in (
        ("not-utf-8-\\xff", "its name is not UTF-8"),
        ("pipe", "is a FIFO"),
        ("checkpoint socket", "is a socket"),
        ("link", "is a symbolic link"),
        ("ddd", "more than 1024 bytes"),
    ):
        (note,) = notes(client, "odd", name)
        assert cause in note, note
    (last,) = notes(client, "odd", "after the last sync")
    assert "2 of the files in /opt/ml/checkpoints" in last


def test_a_failure_file_that_is_none_is_not_read(client: Client, place: Grounds) -> None:
    secret = place.home / "secret"
    secret.mkdir()
    (secret / "failure").write_text("of this machine")
    for name, left in {
        "fifo": "os.mkfifo(ROOT + '/output/failure')",
        "endless": "os.symlink('/dev/zero', ROOT + '/output/failure')",
        "link": "os.symlink(SECRET + '/failure', ROOT + '/output/failure')",
        "above": "os.rename(ROOT + '/output', ROOT + '/away'); os.symlink(SECRET, ROOT + '/output')",
    }.items():
        job = client.run(name, f"SECRET = {str(secret)!r}\n{left}\nsys.exit(3)\n")
        (note,) = notes(client, name, "/opt/ml/output/failure is not read: it is a ")
        said = note[note.index("/opt/ml") :]
        reason = f"AlgorithmError: algo-1 exited with code 3: {said}, exit code: 3"
        assert job["FailureReason"] == reason, name
        assert note.endswith("FIFO" if name == "fifo" else "symbolic link")


def test_a_failure_file_is_read_no_further_than_it_counts(client: Client) -> None:
    script = """
with open(ROOT + "/output/failure", "w") as file:
    file.write("why " * 300)
    file.truncate(1 << 40)
sys.exit(1)
"""
    reason = client.run("long", script)["FailureReason"]
    assert "why why" in reason
    assert len(reason) < 1100


def test_a_directory_that_became_a_link_uploads_nothing_of_this_machine(
    client: Client, place: Grounds
) -> None:
    secret = place.home / "secret"
    (secret / "data").mkdir(parents=True)
    (secret / "data" / "key").write_text("of this machine")
    script = f"""
open(ROOT + "/model/weights", "w").write("w")
os.rename(ROOT + "/output", ROOT + "/away")
os.symlink({str(secret)!r}, ROOT + "/output")
"""
    job = client.run("linked", script)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith(
        "ClientError: Artifact upload failed:/opt/ml/output/data lies behind"
    )
    assert client.archive("out/linked/output/model.tar.gz") == {"weights": "w"}
    assert client.keys("out/linked/") == ["out/linked/output/model.tar.gz"]


def test_a_model_that_no_one_may_read_is_stored_all_the_same(client: Client) -> None:
    """As on SageMaker, where root takes it."""
    script = """
os.mkdir(ROOT + "/model/deep")
open(ROOT + "/model/deep/weights", "w").write("w")
open(os.fsencode(ROOT) + b"/model/odd-\\xff", "w").write("x")
os.mkfifo(ROOT + "/model/pipe")
os.chmod(ROOT + "/model/deep/weights", 0)
os.chmod(ROOT + "/model/deep", 0)
"""
    job = client.run("shut", script)
    assert (job["TrainingJobStatus"], job.get("FailureReason")) == ("Completed", None)
    assert client.archive("out/shut/output/model.tar.gz") == {"deep/weights": "w", "odd-\udcff": "x"}
    assert len(notes(client, "shut", "model/pipe is a FIFO")) == 1


def test_a_tree_of_any_depth_is_stored_as_far_as_it_can_be_and_removed(client: Client) -> None:
    script = """
for where in ("checkpoints", "model"):
    os.chdir(ROOT + "/" + where)
    for _ in range(1200):
        os.mkdir("deeper" * 20)
        os.chdir("deeper" * 20)
    open("bottom", "w").write("x")
open(ROOT + "/checkpoints/top", "w").write("x")
"""
    job = client.run("deep", script, **CHECKPOINTS)
    assert client.keys("ckpt/") == ["ckpt/top"]
    assert job["TrainingJobStatus"] == "Failed"
    assert "its path has 4096 bytes or more" in job["FailureReason"]
