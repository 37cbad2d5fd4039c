"""Links, FIFOs and devices in a job's directories: no file is lost, no file of this machine is read, and
nothing blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.local.client import EndpointClient
from tests.local.endpoint_harness import EndpointHarness, endpoint_harness

CHECKPOINTS = {"CheckpointConfig": {"S3Uri": "s3://tests/ckpt"}}
WAIT_FOR_FILE = "while not os.path.exists(ROOT + '/go'): time.sleep(0.01)\n"


@pytest.fixture
def harness(level: str) -> Iterator[EndpointHarness]:
    with endpoint_harness(level, checkpoint_sync_seconds=0.05) as harness:  # checks for leftovers at its end
        harness.start()
        yield harness


@pytest.fixture
def client(harness: EndpointHarness) -> EndpointClient:
    return EndpointClient(harness.info)


def continue_script(harness: EndpointHarness, word: str) -> None:
    """Let a script continue that runs ``WAIT_FOR_FILE``."""
    (tree,) = harness.home.glob("hosts/*/*/algo-1/ml")
    (tree / word).touch()


def wait_for_key(client: EndpointClient, key: str) -> None:
    deadline = time.monotonic() + 30
    while key not in client.keys(key):
        assert time.monotonic() < deadline, client.keys("")
        time.sleep(0.02)


def notes(client: EndpointClient, name: str, text: str) -> list[str]:
    return [line for line in client.lines(name)["algo-1"] if line.startswith("[smlaunch] ") and text in line]


def test_an_unreadable_file_does_not_block_other_checkpoints(
    client: EndpointClient, harness: EndpointHarness
) -> None:
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
    later = "os.chmod('step', 0)\nopen('second', 'w').write('2')\n" + WAIT_FOR_FILE.replace("/go", "/go-on")
    client.create("odd", script + WAIT_FOR_FILE + later, **CHECKPOINTS)
    wait_for_key(client, "ckpt/first")
    wait_for_key(client, "ckpt/step/part")
    continue_script(harness, "go")
    wait_for_key(client, "ckpt/second")
    assert client.keys("ckpt/step/") == ["ckpt/step/part"], "what is shut away has not been deleted"
    continue_script(harness, "go-on")
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
    assert "at least 2 of the files in /opt/ml/checkpoints" in last


def test_a_failure_file_of_another_type_is_not_read(client: EndpointClient, harness: EndpointHarness) -> None:
    secret = harness.home / "secret"
    secret.mkdir()
    (secret / "failure").write_text("of this machine")
    for name, damage in {
        "fifo": "os.mkfifo(ROOT + '/output/failure')",
        "endless": "os.symlink('/dev/zero', ROOT + '/output/failure')",
        "link": "os.symlink(SECRET + '/failure', ROOT + '/output/failure')",
        "above": "os.rename(ROOT + '/output', ROOT + '/away'); os.symlink(SECRET, ROOT + '/output')",
    }.items():
        job = client.run(name, f"SECRET = {str(secret)!r}\n{damage}\nsys.exit(3)\n")
        (note,) = notes(client, name, "/opt/ml/output/failure is not read: it is a ")
        explanation = note[note.index("/opt/ml") :]
        reason = f"AlgorithmError: algo-1 exited with code 3: {explanation}, exit code: 3"
        assert job["FailureReason"] == reason, name
        assert note.endswith("FIFO" if name == "fifo" else "symbolic link")


def test_only_the_beginning_of_a_failure_file_is_read(client: EndpointClient) -> None:
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
    client: EndpointClient, harness: EndpointHarness
) -> None:
    secret = harness.home / "secret"
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
    assert client.read_archive("out/linked/output/model.tar.gz") == {"weights": "w"}
    assert client.keys("out/linked/") == ["out/linked/output/model.tar.gz"]


def test_a_model_without_read_permission_is_uploaded(client: EndpointClient) -> None:
    """As on SageMaker, where root reads it."""
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
    assert client.read_archive("out/shut/output/model.tar.gz") == {"deep/weights": "w", "odd-\udcff": "x"}
    assert len(notes(client, "shut", "model/pipe is a FIFO")) == 1


def test_a_tree_of_any_depth_is_stored_as_far_as_it_can_be_and_removed(client: EndpointClient) -> None:
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
