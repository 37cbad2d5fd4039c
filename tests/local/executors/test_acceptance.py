"""The same tests for all levels: the environment of a job's program, its end, and its leftovers. Levels user
and plain run as an ordinary user."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.local.executors.isolation_levels import ISOLATION_LEVELS
from smlaunch.local.executors.isolation_matrix import BEGIN, DIFFERENCES, END, table
from tests.conftest import ROOT
from tests.local.client import EndpointClient
from tests.local.endpoint_harness import EndpointHarness, endpoint_harness
from tests.local.executors.conftest import eventually


@pytest.fixture(scope="module", params=ISOLATION_LEVELS)
def host(request: pytest.FixtureRequest) -> Iterator[EndpointHarness]:
    with endpoint_harness(request.param) as harness:
        harness.start()
        yield harness


@pytest.fixture
def client(host: EndpointHarness) -> EndpointClient:
    return EndpointClient(host.info)


PROBE_HOST = """
import errno, tempfile
config_file = ROOT + "/input/config/resourceconfig.json"
config = json.load(open(config_file))
me = config["current_host"]
outside = json.loads(os.environ["OUTSIDE"])
found = {}
found["contract"] = os.path.exists("/opt/ml/input/config/resourceconfig.json")
found["hostname"] = socket.gethostname() == me
addresses = [socket.gethostbyname(name) for name in config["hosts"]]
found["resolves"] = len(set(addresses)) == 2 and all(address.startswith("127.") for address in addresses)
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())]
found["pid_1"] = os.getpid() == 1 and not others
found["own_tmp"] = not os.path.exists(outside["tmp"])
found["own_shm"] = not os.path.exists(outside["shm"])
# Where programs come from stays visible, also when that lies below /tmp.
program_dirs = [sys.prefix, sys.base_prefix, os.environ.get("HOME", ""), *os.environ["PATH"].split(":")]
entries = [os.path.join(tempfile.gettempdir(), name) for name in os.listdir(tempfile.gettempdir())]
found["own_tempdir"] = all(
    any((directory + "/").startswith(entry + "/") for directory in program_dirs) for entry in entries
)
open(tempfile.gettempdir() + "/mine", "w").write("x")
data = ROOT + "/input/data/large/"
before = open(data + "000").read()
with open(data + "000", "r+") as file: file.write("HARM")
os.unlink(data + "001")
found["harmless"] = before == "original" and not os.path.exists(data + "001")
try: socket.create_connection(("127.0.0.1", outside["port"]), 2).close(); found["isolated"] = False
except OSError: found["isolated"] = True
found["root"] = os.getuid() == 0
found["machine_writable"] = os.access(outside["machine"], os.W_OK)
open(ROOT + "/model/mine", "w").write("x")
refused = None
try: os.chown(ROOT + "/model/mine", 1234, 1234); os.chown(ROOT + "/model/mine", 0, 0)
except OSError as error: refused = errno.errorcode[error.errno]
found["gives_away"] = refused is None
print("found", json.dumps([found, refused, os.stat("/").st_uid]), flush=True)
time.sleep(1000)
"""


def test_what_a_program_finds(host: EndpointHarness, client: EndpointClient, tmp_path: Path) -> None:
    for number in range(100):  # enough objects to be mounted rather than copied, where that is possible
        client.put(f"large/{number:03}", b"original")
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://tests/large"}
    marks = Path("/tmp/sml-outside"), Path("/dev/shm/sml-outside")
    machine = "/etc/hostname" if Path("/etc/hostname").exists() else "/etc/passwd"
    try:
        for mark in marks:
            mark.write_text("x")
        with socket.create_server(("127.0.0.1", 0)) as server:
            outside = {
                "tmp": str(marks[0]),
                "shm": str(marks[1]),
                "machine": machine,
                "port": server.getsockname()[1],
            }
            client.create(
                "look",
                PROBE_HOST,
                hosts=2,
                EnableNetworkIsolation=True,
                Environment={"OUTSIDE": json.dumps(outside)},
                InputDataConfig=[{"ChannelName": "large", "DataSource": {"S3DataSource": source}}],
            )
            client.wait_for_line("look", "found", count=2)
    finally:
        for mark in marks:
            mark.unlink()
    answers = [json.loads(lines[-1].partition(" ")[2]) for lines in client.printed_lines("look").values()]
    expected = {row.key: row.at(host.level).holds for row in DIFFERENCES if row.key != "ignores_sigterm"}
    for findings, refused, owner_of_root in answers:
        assert findings == expected
        # Each level refuses with an error of its own.
        assert refused == {"full": None, "user": "EINVAL", "plain": "EPERM"}[host.level]
        assert owner_of_root == (65534 if host.level == "user" else 0)
    assert client.s3.get_object(Bucket="tests", Key="large/000")["Body"].read() == b"original"
    assert len(client.keys("large/")) == 100
    notes = [
        line for line in client.lines("look")["algo-1"] if "EnableNetworkIsolation is without effect" in line
    ]
    assert bool(notes) == (host.level == "plain")
    client.sagemaker.stop_training_job(TrainingJobName="look")
    assert client.wait("look")["TrainingJobStatus"] == "Stopped"
    assert not Path("/opt/ml").exists()


def test_a_first_process_without_a_handler(host: EndpointHarness, client: EndpointClient) -> None:
    client.create("deaf", "print('ready', flush=True); time.sleep(1000)")
    client.wait_for_line("deaf", "ready")
    (first,) = (process.pid for process in host.processes() if process.role == "first")
    os.kill(first, 15)
    (row,) = (row for row in DIFFERENCES if row.key == "ignores_sigterm")
    if row.at(host.level).holds:
        # Signals arrive in order: no pending signal of a process that sleeps means that SIGTERM was ignored.
        assert eventually(lambda: _ignored_signals(first))
        os.kill(first, 9)
    job = client.wait("deaf")
    code = 137 if row.at(host.level).holds else 143
    assert f"exit code: {code}" in job["FailureReason"]


def _ignored_signals(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = [line for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return all(int(line.split()[1], 16) == 0 for line in pending) and "State:\tS" in status


ESCAPING_CHILDREN_SCRIPT = """
import subprocess
def double(word):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid(); os.execvp("sleep", ["sleep", word])
        os._exit(0)
    os.wait()
subprocess.Popen(["setsid", "sleep", "1001"])
subprocess.Popen(["nohup", "sleep", "1002"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
double("1003")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print("ready", flush=True)
"""


@pytest.mark.parametrize(
    ("name", "ending", "status", "text"),
    [
        ("well", "sys.exit(0)", "Completed", ""),
        ("badly", "sys.exit(7)", "Failed", "exit code: 7"),
        ("by-signal", "os.kill(os.getpid(), 9) or os.abort()", "Failed", "exit code: 13"),
    ],
)
def test_nothing_outlives_an_end(
    host: EndpointHarness, client: EndpointClient, name: str, ending: str, status: str, text: str
) -> None:
    job = client.run(f"ends-{name}", ESCAPING_CHILDREN_SCRIPT + ending, hosts=2)
    assert job["TrainingJobStatus"] == status
    assert text in job.get("FailureReason", "")
    assert host.processes() == []


def test_nothing_outlives_a_stop(host: EndpointHarness, client: EndpointClient) -> None:
    client.create("stops", ESCAPING_CHILDREN_SCRIPT + "time.sleep(1000)", hosts=2)
    client.wait_for_line("stops", "ready", count=2)
    assert len(host.processes()) == 10
    client.sagemaker.stop_training_job(TrainingJobName="stops")
    assert client.wait("stops")["TrainingJobStatus"] == "Stopped"
    assert host.processes() == []


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        ("embedded", "endpoint"),
        ("background", "endpoint"),
        ("background", "supervisor"),
        ("background", "first"),
        ("embedded", "below"),
        ("background", "endpoint and supervisors"),
    ],
)
@pytest.mark.parametrize("level", ISOLATION_LEVELS)
def test_nothing_outlives_a_killed(level: str, kind: str, victim: str) -> None:
    """``endpoint_harness`` checks for leftovers, also after the next endpoint's start."""
    with endpoint_harness(level) as host:
        client = EndpointClient(host.start(kind))
        client.create(
            "runs",
            ESCAPING_CHILDREN_SCRIPT + "double('1004'); time.sleep(1000)",
            hosts=2,
            EnableNetworkIsolation=True,
        )
        client.wait_for_line("runs", "ready", count=2)
        assert eventually(lambda: len(host.processes()) == 12)
        if victim == "endpoint":
            host.kill()
        elif victim == "endpoint and supervisors":
            supervisors = [process.pid for process in host.processes() if process.role == "supervisor"]
            host.kill(*supervisors)
            client = EndpointClient(host.start(kind))
        else:
            os.kill([process.pid for process in host.processes() if process.role == victim][-1], 9)
            if victim == "below":  # a daemon: the job runs without it
                assert client.describe("runs")["TrainingJobStatus"] == "InProgress"
                client.sagemaker.stop_training_job(TrainingJobName="runs")
                assert client.wait("runs")["TrainingJobStatus"] == "Stopped"
            else:
                assert client.wait("runs", patience=20)["TrainingJobStatus"] == "Failed"
        assert eventually(host.has_no_processes), host.processes()


def test_the_page_shows_the_table_that_is_tested() -> None:
    text = (ROOT / "docs" / "isolation.md").read_text()
    table_text = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert table_text == table(), "python tools/generate_isolation_table.py writes it anew"
