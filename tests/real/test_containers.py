"""The executor `containers`: real images under a real engine, through boto3 and the API alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import EndpointError
from smlaunch.local.endpoint import Endpoint, EndpointInfo
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors import container_commands, container_engine
from smlaunch.local.executors.container_cli import Engine
from smlaunch.local.state_dir import StateDir
from tests.local.client import EndpointClient
from tests.local.executors.conftest import eventually
from tests.real.containers import BASE, build_image, engine_or_skip, list_remaining

SETTINGS = Settings(
    stop_grace_seconds=3, failed_peer_grace_seconds=1, checkpoint_sync_seconds=0.1, close_grace_seconds=1
)
CONTAINER = {"TrainingImage": BASE, "TrainingInputMode": "File"}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_or_skip()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("containers")


@pytest.fixture(scope="module")
def client(engine: Engine, home: Path) -> Iterator[EndpointClient]:
    endpoint = Endpoint(home, executor="containers", settings=SETTINGS)
    info = endpoint.start()
    (owner,) = (lock.stem for lock in StateDir(home).owners_dir.glob("*.lock"))
    yield EndpointClient(info)
    endpoint.close()
    assert list_remaining(engine, owner) == []
    assert list(StateDir(home).hosts_dir.iterdir()) == []


def script_in(image: str = BASE) -> dict[str, Any]:
    """Returns a request whose entry point runs the client's usual script by the image's python3."""
    command = ["python3", "-u", "/opt/ml/input/data/program/script.py"]
    return {"AlgorithmSpecification": {**CONTAINER, "TrainingImage": image, "ContainerEntrypoint": command}}


def channel(name: str, mode: str = "File") -> dict[str, Any]:
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": f"s3://tests/{name}/",
        "S3DataDistributionType": "FullyReplicated",
    }
    return {"ChannelName": name, "InputMode": mode, "DataSource": {"S3DataSource": source}}


def line_through(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Fits a line by least squares, in closed form."""
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    sxx, sxy = sum(x * x for x, _ in points), sum(x * y for x, y in points)
    slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
    return slope, (sy - slope * sx) / n


def test_a_custom_image_reads_resourceconfig_and_two_hosts_find_the_answer(
    client: EndpointClient, engine: Engine
) -> None:
    points = [(x / 10, 3 * x / 10 - 1 + (-1) ** x * x / 50) for x in range(20)]
    for part in range(4):  # of unequal sizes on the two hosts
        rows = points[part * 3 : part * 3 + 3] if part < 3 else points[9:]
        client.put(f"train/{part}.csv", "".join(f"{x},{y}\n" for x, y in rows).encode())
    name = "custom"
    request = client.request(name, "", 2, HyperParameters={"lr": "0.3", "steps": "2000"})
    request["AlgorithmSpecification"] = {**CONTAINER, "TrainingImage": build_image(engine, "training")}
    request["InputDataConfig"] = [channel("train")]
    client.sagemaker.create_training_job(**request)
    job = client.wait(name)
    assert job["TrainingJobStatus"] == "Completed", (job.get("FailureReason"), client.lines(name))
    results = {
        key: json.loads(text) for key, text in client.read_archive(f"out/{name}/output/model.tar.gz").items()
    }
    assert set(results) == {"algo-1.json", "algo-2.json"}
    assert results["algo-1.json"] == results["algo-2.json"]
    slope, intercept = line_through(points)
    assert results["algo-1.json"]["slope"] == pytest.approx(slope, abs=1e-9)
    assert results["algo-1.json"]["intercept"] == pytest.approx(intercept, abs=1e-9)
    printed = client.printed_lines(name)
    assert printed["algo-1"][0].endswith("6 rows of 2 files, called with ['train']")
    assert printed["algo-2"][0].endswith("14 rows of 2 files, called with ['train']")
    (image,) = (line for line in client.lines(name)["algo-1"] if " is run by " in line)
    assert "image localhost/smlaunch-test-training (" in image


RANKS = """
import os, socket, sys
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)
if rank == 0:
    with socket.create_server(("", where[1])) as server:
        links = [server.accept()[0] for _ in range(world - 1)]
    total = sum(int(link.recv(16)) for link in links)
    for link in links:
        link.sendall(str(total).encode())
else:
    import time
    while True:
        try:
            link = socket.create_connection(where)
            break
        except OSError:
            time.sleep(0.1)
    link.sendall(str(rank * rank).encode())
    total = int(link.recv(16))
print(f"rank {rank} of {world} on {socket.gethostname()}: {total} {sys.version_info[:2]}", flush=True)
"""


def run_in_containers(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `smlaunch run` in ``folder``, on an endpoint that it starts for itself."""
    command = [
        sys.executable,
        "-m",
        "smlaunch.cli.main",
        "run",
        "--local",
        "--executor",
        "containers",
        *arguments,
    ]
    environment = {**os.environ, "SMLAUNCH_HOME": str(folder / "home")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def test_our_runtime_in_a_plain_python_image(engine: Engine, tmp_path: Path) -> None:
    """The image has a python3 and nothing of smlaunch; two hosts of two ranks."""
    (tmp_path / "ranks.py").write_text(RANKS)
    arguments = ["--image", BASE, "--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2"]
    result = run_in_containers(tmp_path, "ranks.py", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    rank_lines = [line.partition("rank ")[2] for line in result.stdout.splitlines() if " of 4 on " in line]
    expected = [f"{rank} of 4 on algo-{1 + rank // 2}: 14 (3, 11)" for rank in range(4)]
    assert sorted(rank_lines) == expected, result.stdout + result.stderr


def test_an_image_with_its_own_program_by_the_command_line(engine: Engine, tmp_path: Path) -> None:
    """smlaunch adds nothing: no channel and no entry point, only the files that the image reads itself."""
    (tmp_path / "train").mkdir()
    for part in range(2):
        (tmp_path / "train" / f"{part}.csv").write_text(f"{part},{2 * part + 1}\n")
    arguments = ["--image", build_image(engine, "training"), "--strategy", "custom", "--hosts", "2"]
    result = run_in_containers(tmp_path, *arguments, "--input", "train=train", "--hp", "steps=200", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    (job,) = json.loads(result.stdout)["jobs"]
    (owner,) = (tmp_path / "home" / "s3").glob("sagemaker-*")
    assert not [path for path in owner.rglob("*") if path.name in ("runtime.pyz", "job.json")]
    (model,) = owner.rglob("model.tar.gz")
    with tarfile.open(model) as archive:
        assert sorted(archive.getnames()) == ["algo-1.json", "algo-2.json"], job


HOSTILE = {
    "PLAIN": "value",
    "LINES": "one\ntwo\n\nthree\n",
    "QUOTES": "a 'b' \"c\" `d` $(e) $HOME ${F} \\g \\n",
    "EQUALS": "=a=b==",
    "BLANKS": "  spaces\tand tabs  ",
    "EMPTY": "",
    "HASH": "# no comment",
    "STAR": "*",
    "SNOWMAN": "\u2603 \U0001f600",
    "DOCKER_HOST": "tcp://nowhere:1",
    "CONTAINERS_CONF": "/nowhere",
    "LD_PRELOAD": "",
    "AWS_MINE": "a\nsecret='x'",
    "HF_TOKEN": "hf_\n 'x'",
    "HTTPS_PROXY": "http://user:password@nowhere:1",
    "_CONTAINERS_USERNS_CONFIGURED": "done",
    "TMPDIR": "/opt/ml",
}


def test_environment_and_words_arrive_exactly(client: EndpointClient) -> None:
    script = "print(json.dumps([dict(os.environ), sys.argv[1:]]))"
    hostile_words = ["", " ", "--flag=a b", "'\"$HOME`", "*", "#", '["json"]', "\u2603", "--", "-"]
    algorithm = {**script_in()["AlgorithmSpecification"], "ContainerArguments": hostile_words}
    job = client.run("exact", script, AlgorithmSpecification=algorithm, Environment=HOSTILE)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    environment, arguments = json.loads(client.printed_lines("exact")["algo-1"][0])
    assert {name: environment.get(name) for name in HOSTILE} == HOSTILE
    assert arguments == hostile_words
    # Nothing of this machine's: the image's own PATH and home.
    assert environment["PATH"].startswith("/usr/local/sbin:") and environment["HOME"] == "/root"
    assert not environment.keys() & {"VIRTUAL_ENV", "SSL_CERT_FILE", "PYTHONPATH", "SMLAUNCH_SHARED_PYTHON"}


@pytest.fixture
def docker(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """podman's own service speaks Docker's protocol: the docker command line is real, its daemon is not."""
    path = tmp_path / "podman.sock"
    command = engine.command_line("system", "service", "--time=0", f"unix://{path}")
    with subprocess.Popen(command) as service:
        assert eventually(path.exists)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield
        service.terminate()


ENGINES = [kind for kind in ("podman", "docker") if kind == "podman" or shutil.which(kind)]


@pytest.mark.parametrize("kind", ENGINES)
def test_the_same_by_either_engines_command_line(
    engine: Engine, kind: str, docker: None, tmp_path: Path
) -> None:
    script = """
print(json.dumps(dict(os.environ)), flush=True)
print([socket.gethostbyname(name) != "127.0.0.1" for name in ("algo-1", "algo-2")], flush=True)
where = ("127.0.0.1", int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    try:
        socket.create_connection(where).close()
        print("reached", flush=True)
        break
    except OSError:
        time.sleep(0.1)
if socket.gethostname() == "algo-1":
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: (print("leaving", flush=True), sys.exit(0)))
time.sleep(100)
"""
    settings = Settings(container_engine=kind, stop_grace_seconds=5)
    with Endpoint(tmp_path / "home", executor="containers", settings=settings) as info:
        assert info.isolation == kind
        client = EndpointClient(info)
        job = client.run("either", script, hosts=2, Environment=HOSTILE, **script_in())
        printed = client.printed_lines("either")
    assert job["FailureReason"] == "AlgorithmError: , exit code: 7"
    for label, lines in printed.items():
        environment = json.loads(lines[0])
        assert {name: environment.get(name) for name in HOSTILE} == HOSTILE
        assert lines[1:] == ["[True, True]", "reached", *["leaving"] * (label == "algo-2")]


def test_hosts_by_name_and_the_endpoint_within_reach(client: EndpointClient, engine: Engine) -> None:
    script = """
import http.client, urllib.parse
print(os.getpid(), socket.gethostname(), [socket.gethostbyname(name) for name in ("algo-1", "algo-2")])
print(os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize, os.path.exists("/opt/ml/model"))
where = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
link = http.client.HTTPConnection(where.hostname, where.port)
link.request("GET", "/tests")
print(where.hostname, link.getresponse().status)
"""
    job = client.run("near", script, hosts=2, **script_in())
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    printed = client.printed_lines("near")
    addresses = printed["algo-1"][0].partition("[")[2]
    assert len(set(json.loads("[" + addresses.replace("'", '"')))) == 2
    for host, lines in printed.items():
        assert lines[0].split(" [")[0] == f"1 {host}"
        assert lines[0].partition("[")[2] == addresses
        assert lines[1] == f"{2 << 30} True"
        assert lines[2] == "127.0.0.1 403"  # it answers, and wants a signature


def test_network_isolation(client: EndpointClient) -> None:
    script = """
def reaches(address):
    try:
        socket.create_connection(address, timeout=3).close()
        return True
    except OSError as error:
        return type(error).__name__
me = socket.gethostname()
server = socket.create_server(("", 9999))
while reaches(("algo-1", 9999)) is not True or reaches(("algo-2", 9999)) is not True:
    time.sleep(0.1)
secrets = [name for name in os.environ if name.startswith("AWS_SECRET")]
print("peers reached", reaches(("192.0.2.1", 80)), secrets)
time.sleep(2)  # the other host may be looking yet
"""
    job = client.run("isolated", script, hosts=2, EnableNetworkIsolation=True, **script_in())
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    for lines in client.printed_lines("isolated").values():
        assert lines in (["peers reached OSError []"], ["peers reached TimeoutError []"])


def test_channels_checkpoints_and_what_writing_to_them_does(client: EndpointClient, home: Path) -> None:
    for number in range(70):  # more than is copied
        client.put(f"many/{number:02}", b"same")
    client.put("fast/one", b"fast")
    client.put("piped/one", b"through a pipe")
    script = """
for name in ("many/07", "fast/one"):
    try:
        with open("/opt/ml/input/data/" + name, "w") as file: file.write("changed")
        print(name, "written", open("/opt/ml/input/data/" + name).read())
    except OSError as error:
        print(name, error.strerror)
print(len(os.listdir("/opt/ml/input/data/many")), open("/opt/ml/input/data/piped_0").read())
os.makedirs("/elsewhere", exist_ok=True)
open("/elsewhere/step-1", "w").write("saved")
"""
    job = client.run(
        "channels",
        script,
        InputDataConfig=[channel("many"), channel("fast", "FastFile"), channel("piped", "Pipe")],
        CheckpointConfig={"S3Uri": "s3://tests/ckpt", "LocalPath": "/elsewhere"},
        **script_in(),
    )
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert client.printed_lines("channels")["algo-1"] == [
        "many/07 written changed",
        "fast/one Read-only file system",
        "70 through a pipe",
    ]
    assert (home / "s3" / "tests" / "many" / "07").read_text() == "same"
    assert client.keys("ckpt/") == ["ckpt/step-1"]


def test_exit_codes_and_words_of_failure(client: EndpointClient) -> None:
    code = client.run("seven", "sys.exit(7)", **script_in())
    assert code["FailureReason"] == "AlgorithmError: , exit code: 7"
    description = client.run(
        "told", "open('/opt/ml/output/failure', 'w').write('why'); sys.exit(3)", **script_in()
    )
    assert description["FailureReason"] == "AlgorithmError: why, exit code: 3"
    for name, command, number in (
        ("missing", ["no-such-program"], 127),
        ("unfit", ["/etc/hostname"], 126),
        ("listlike", ['["python3"]'], 127),
    ):
        algorithm = {**CONTAINER, "ContainerEntrypoint": command}
        job = client.run(name, "", AlgorithmSpecification=algorithm)
        assert job["FailureReason"].startswith(f"AlgorithmError: algo-1 exited with code {number}: ")
        assert job["FailureReason"].endswith(f"exit code: {number}"), job["FailureReason"]


def test_an_image_that_cannot_be_had(client: EndpointClient) -> None:
    for name, image, cause in (
        ("absent", "localhost:1/never/made:1", "its registry localhost:1 cannot be reached"),
        ("nameless", "never-made", "its name has no registry"),
    ):
        job = client.run(name, "", **script_in(image))
        assert job["TrainingJobStatus"] == "Failed"
        assert job["FailureReason"].startswith(f"ClientError: image {image} is not on this machine")
        assert cause in job["FailureReason"] and f"build --tag {image}" in job["FailureReason"]


def test_a_pull_that_fails_and_one_that_is_given_up(client: EndpointClient) -> None:
    """One registry closes every connection, another one never responds."""
    with socket.create_server(("127.0.0.1", 0)) as closing, socket.create_server(("127.0.0.1", 0)) as silent:

        def hang_up() -> None:
            while True:
                try:
                    closing.accept()[0].close()
                except OSError:
                    return  # the test is over

        threading.Thread(target=hang_up, daemon=True).start()
        image = f"127.0.0.1:{closing.getsockname()[1]}/some/image:1"
        job = client.run("rude", "", **script_in(image))
        assert job["FailureReason"].startswith(f"ClientError: image {image} cannot be pulled: ")
        client.create("silent", "", **script_in(f"127.0.0.1:{silent.getsockname()[1]}/some/image:1"))
        silent.accept()  # our look whether it is there
        silent.accept()  # the engine has come
        client.sagemaker.stop_training_job(TrainingJobName="silent")
        assert client.wait("silent")["TrainingJobStatus"] == "Stopped"
        closing.shutdown(socket.SHUT_RDWR)


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_a_daemon_that_never_answers_does_not_stop_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is real; the daemon is a socket that accepts connections and never responds."""
    monkeypatch.setattr(container_commands, "TIMEOUT_SECONDS", 2.0)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'silent.sock'}")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen()
        with pytest.raises(EndpointError, match="docker: `docker version` has not answered for 2 s"):
            container_engine.choose_engine(tmp_path / "engine.json", "docker")


def test_stop_reaches_the_handler_and_what_it_saves_is_kept(client: EndpointClient) -> None:
    script = """
def leave(*_):
    open("/opt/ml/model/saved", "w").write("at the end")
    print("leaving", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(100)
"""
    client.create("asked", script, hosts=2, **script_in())
    client.wait_for_line("asked", "ready", count=2)
    client.sagemaker.stop_training_job(TrainingJobName="asked")
    assert client.wait("asked")["TrainingJobStatus"] == "Stopped"
    assert [lines[-1] for lines in client.printed_lines("asked").values()] == ["leaving", "leaving"]
    assert client.read_archive("out/asked/output/model.tar.gz") == {"saved": "at the end"}


def test_who_does_not_listen_is_killed(client: EndpointClient) -> None:
    """A first process without a handler does not notice SIGTERM, as process 1 of any container."""
    client.create("deaf", "print('ready', flush=True); time.sleep(1000)", **script_in())
    client.wait_for_line("deaf", "ready")
    client.sagemaker.stop_training_job(TrainingJobName="deaf")
    job = client.wait("deaf")
    assert job["TrainingJobStatus"] == "Stopped"
    # The grace of these settings, not the 1000 s.
    assert (job["TrainingEndTime"] - job["TrainingStartTime"]).total_seconds() < 60


def test_memory_that_runs_out_is_told(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = Settings(container_options=("--memory=48m", "--memory-swap=48m"))
    with Endpoint(tmp_path / "home", executor="containers", settings=settings) as info:
        job = EndpointClient(info).run(
            "hungry", "kept = bytearray(200 << 20); print(len(kept))", **script_in()
        )
    assert job["TrainingJobStatus"] == "Failed"
    assert "memory" in job["FailureReason"] and job["FailureReason"].endswith("exit code: 137")
    assert os.listdir() == [], "the engine leaves nothing where the command was run"


EMBEDDING = """
import sys
from pathlib import Path
from smlaunch.local.endpoint import Endpoint
info = Endpoint(Path(sys.argv[1]), executor="containers").start()
sys.stdout.buffer.write(info.to_json().replace(b"\\n", b"") + b"\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize("supervisors_too", (False, True))
def test_an_endpoint_that_is_killed_leaves_nothing(
    engine: Engine, tmp_path: Path, supervisors_too: bool
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", EMBEDDING, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    client = EndpointClient(EndpointInfo.from_json(process.stdout.readline().encode()))
    client.create("lost", "print('ready', flush=True); time.sleep(1000)", hosts=2, **script_in())
    client.wait_for_line("lost", "ready", count=2)
    (owner,) = (lock.stem for lock in StateDir(tmp_path).owners_dir.glob("*.lock"))
    assert len(list_remaining(engine, owner)) == 3
    supervisors = processes_of(process.pid)
    process.kill()
    if supervisors_too:
        assert len(supervisors) == 2
        for pid in supervisors:
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    if not supervisors_too:
        assert eventually(lambda: list_remaining(engine, owner) == [])
    with Endpoint(tmp_path, executor="processes" if supervisors_too else "containers") as info:
        reason = EndpointClient(info).describe("lost")["FailureReason"]
    assert "ended without closing it" in reason
    assert list_remaining(engine, owner) == []
    assert eventually(lambda: list(StateDir(tmp_path).hosts_dir.iterdir()) == [])


def processes_of(parent: int) -> dict[int, list[str]]:
    """Returns command lines of the process's children by pid."""
    threads = Path(f"/proc/{parent}/task").iterdir()
    pids = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] for pid in pids}


@pytest.mark.parametrize("victim", ("supervisor", "client"))
def test_what_watches_over_a_container_is_killed(
    client: EndpointClient, engine: Engine, home: Path, victim: str
) -> None:
    """The test kills the supervisor, or the engine's client that reads the output."""
    name = f"watched-{victim}"
    client.create(name, "print('ready', flush=True); time.sleep(1000)", hosts=2, **script_in())
    client.wait_for_line(name, "ready", count=2)
    supervisor = next(
        pid for pid, command_line in processes_of(os.getpid()).items() if "container" in command_line
    )
    if victim == "client":
        (pid,) = (pid for pid, command_line in processes_of(supervisor).items() if "start" in command_line)
    else:
        pid = supervisor
    os.kill(pid, signal.SIGKILL)
    job = client.wait(name)
    assert job["FailureReason"].startswith("InternalServerError: ")
    assert "was killed" in job["FailureReason"]
    (owner,) = (lock.stem for lock in StateDir(home).owners_dir.glob("*.lock"))
    assert eventually(lambda: list_remaining(engine, owner) == [])


def test_a_processing_image_with_its_own_entry_point(client: EndpointClient, engine: Engine) -> None:
    for name, text in (("a.txt", "x y x"), ("b.txt", "z"), ("c.txt", "x x")):
        client.put(f"texts/{name}", text.encode())
    client.sagemaker.create_processing_job(
        ProcessingJobName="words",
        RoleArn=client.info.role_arn,
        AppSpecification={"ImageUri": build_image(engine, "processing")},
        ProcessingResources={
            "ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
        },
        ProcessingInputs=[
            {
                "InputName": "texts",
                "S3Input": {
                    "S3Uri": "s3://tests/texts/",
                    "LocalPath": "/opt/ml/processing/input/texts",
                    "S3DataType": "S3Prefix",
                    "S3InputMode": "File",
                },
            }
        ],
        ProcessingOutputConfig={
            "Outputs": [
                {
                    "OutputName": "counts",
                    "S3Output": {
                        "S3Uri": "s3://tests/counts",
                        "LocalPath": "/opt/ml/processing/output",
                        "S3UploadMode": "EndOfJob",
                    },
                }
            ]
        },
    )

    def describe() -> dict[str, Any]:
        description: dict[str, Any] = client.sagemaker.describe_processing_job(ProcessingJobName="words")
        return description

    assert eventually(lambda: describe()["ProcessingJobStatus"] not in ("InProgress", "Stopping"))
    job = describe()
    assert job["ProcessingJobStatus"] == "Completed", job
    assert job["ExitMessage"] == "algo-1: 5 words\nalgo-2: 1 words\n"
    parts = {
        key: json.loads(client.s3.get_object(Bucket="tests", Key=key)["Body"].read())
        for key in client.keys("counts/")
    }
    assert parts == {
        "counts/algo-1.json": {"host": "algo-1", "files": ["a.txt", "c.txt"], "top": [["x", 4], ["y", 1]]},
        "counts/algo-2.json": {"host": "algo-2", "files": ["b.txt"], "top": [["z", 1]]},
    }


ALLREDUCE = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce((world.rank + 1) ** 2)
print(f"rank {world.rank} of {world.size} on {socket.gethostname()}: {total}", flush=True)
"""


def test_open_mpi_over_two_hosts_without_an_sshd(engine: Engine, tmp_path: Path) -> None:
    image = build_image(engine, "mpi", "--isolation=chroot", "--network=host")
    (tmp_path / "allreduce.py").write_text(ALLREDUCE)
    arguments = ["--strategy", "mpi", "--image", image, "--hosts", "2", "--processes-per-host", "2"]
    result = run_in_containers(tmp_path, "allreduce.py", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    rank_lines = [line.partition("rank ")[2] for line in result.stdout.splitlines() if " of 4 on " in line]
    assert sorted(rank_lines) == [f"{rank} of 4 on algo-{1 + rank // 2}: 30" for rank in range(4)], (
        result.stdout
    )
