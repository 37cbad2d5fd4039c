"""Every input mode and output of a job, on a running endpoint at every isolation level."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient
from tests.local.executors.conftest import level_or_skip

SETTINGS = Settings(
    stop_grace_seconds=5, failed_peer_grace_seconds=2, close_grace_seconds=1, checkpoint_sync_seconds=0.1
)


@pytest.fixture(scope="module", params=["full", "user", "plain"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EndpointClient]:
    level_or_skip(request.param)
    home = tmp_path_factory.mktemp("home")
    with Endpoint(home, isolation=request.param, settings=SETTINGS) as info:
        yield EndpointClient(info)


def channel(name: str, key: str, **changes: Any) -> dict[str, Any]:
    outer = {
        field: changes.pop(field)
        for field in ("InputMode", "CompressionType", "RecordWrapperType", "ShuffleConfig")
        if field in changes
    }
    source = {
        "S3DataType": "S3Prefix",
        "S3Uri": f"s3://tests/{key}",
        "S3DataDistributionType": "FullyReplicated",
        **changes,
    }
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}, **outer}


def pipe(name: str, key: str, **changes: Any) -> dict[str, Any]:
    return channel(name, key, InputMode="Pipe", **changes)


READ_EPOCHS = """
for epoch in range(3):
    with open(f'{ROOT}/input/data/train_{epoch}', 'rb') as stream:
        print(epoch, stream.read(2 if epoch == 1 else -1).decode())
print(json.load(open(f'{ROOT}/input/config/inputdataconfig.json'))['train'])
"""


def test_pipe_mode(client: EndpointClient) -> None:
    for number in range(3):
        client.put(f"pipe/{number}.gz", gzip.compress(b"%d;" % number))
    # The script opens neither `validation` nor train_3.
    channels = [
        pipe("train", "pipe/", CompressionType="Gzip"),
        pipe("validation", "pipe/"),
    ]
    job = client.run("epochs", READ_EPOCHS, InputDataConfig=channels)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    *epochs, config = client.printed_lines("epochs")["algo-1"]
    assert epochs == ["0 0;1;2;", "1 0;", "2 0;1;2;"]
    assert eval(config) == {
        "TrainingInputMode": "Pipe",
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
        "CompressionType": "Gzip",
    }


READ_RECORDS = """
import struct
data = open(f'{ROOT}/input/data/train_0', 'rb').read()
while data:
    magic, length = struct.unpack('<II', data[:8])
    assert magic == 0xced7230a
    print(data[8:8 + length].decode())
    data = data[8 + (length + 3) // 4 * 4:]
"""


def test_an_augmented_manifest(client: EndpointClient) -> None:
    client.put("img/1", b"<one>")
    client.put("img/2", b"<two>")
    lines = [{"image-ref": f"s3://tests/img/{number}", "cat": number % 2} for number in (1, 2)]
    client.put("the.manifest", "\n".join(map(json.dumps, lines)).encode())
    wanted = pipe(
        *("train", "the.manifest"),
        S3DataType="AugmentedManifestFile",
        AttributeNames=["image-ref", "cat"],
        RecordWrapperType="RecordIO",
    )
    job = client.run("augmented", READ_RECORDS, InputDataConfig=[wanted])
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert client.printed_lines("augmented")["algo-1"] == ["<one>", "1", "<two>", "0"]


def test_a_stream_that_breaks_fails_the_job(client: EndpointClient) -> None:
    client.put("torn/1.gz", gzip.compress(b"good"))
    client.put("torn/2.gz", b"not compressed")
    script = "print(open(f'{ROOT}/input/data/train_0', 'rb').read())"
    wanted = pipe("train", "torn/", CompressionType="Gzip")
    job = client.run("torn", script, hosts=2, InputDataConfig=[wanted])
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("ClientError: Data download failed:s3://tests/torn/2.gz")
    assert not any(client.printed_lines("torn").values())


def test_a_job_that_waits_for_data_can_be_stopped(client: EndpointClient) -> None:
    client.put("slow/1", bytes(5 << 20))
    script = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print('reading', flush=True)
stream = open(f'{ROOT}/input/data/train_0', 'rb')
stream.read(1)
signal.pause()
"""
    client.create("stalled", script, InputDataConfig=[pipe("train", "slow/")])
    client.wait_for_line("stalled", "reading")
    client.sagemaker.stop_training_job(TrainingJobName="stalled")
    assert client.wait("stalled")["TrainingJobStatus"] == "Stopped"


WRITE_INPUT = """
import pathlib, stat
folder = pathlib.Path(ROOT, 'input/data', sys.argv[0] and 'train')
def tried(action):
    try:
        action()
        return 'done'
    except OSError as error:
        return type(error).__name__
first = sorted(folder.iterdir())[0]
print(tried(lambda: first.write_text('scribble')), tried(lambda: (folder / 'new').write_text('x')))
print(len(list(folder.iterdir())), first.read_text())
"""


@pytest.mark.parametrize("count", [3, 70])
@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_a_script_that_writes_into_its_input_harms_nothing(
    client: EndpointClient, mode: str, count: int
) -> None:
    prefix = f"input-{mode}-{count}/"
    for number in range(count):
        client.put(f"{prefix}{number:03}", b"original")
    name = f"writes-{mode}-{count}"
    job = client.run(name, WRITE_INPUT, hosts=2, InputDataConfig=[channel("train", prefix, InputMode=mode)])
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert client.s3.get_object(Bucket="tests", Key=f"{prefix}000")["Body"].read() == b"original"
    assert len(client.keys(prefix)) == count
    printed = client.printed_lines(name)
    if mode == "File":
        expected = ["done done", f"{count + 1} scribble"]
    elif client.info.isolation == "plain":
        # Only file modes protect the input, and root ignores them (docs/data-modes.md).
        return
    else:
        expected = ["OSError OSError", f"{count} original"]
    assert printed == {"algo-1": expected, "algo-2": expected}


WRITE_CHECKPOINT = """
folder = os.environ['CKPT']
print(sorted(os.listdir(folder)))
open(f'{folder}/step-2', 'w').write('two')
os.rename(f'{folder}/step-1', f'{folder}/step-1-renamed')
"""


@pytest.mark.parametrize("path", ["/sml-checkpoints", "/var/tmp/sml/deep/", "/tmp/ckpt", "/opt/ml/mine"])
def test_checkpoints_in_any_directory(client: EndpointClient, path: str) -> None:
    name = f"ckpt{path.rstrip('/').replace('/', '-')}"
    client.put(f"{name}/step-1", b"one")
    checkpoint_config = {"S3Uri": f"s3://tests/{name}/", "LocalPath": path}
    plain = client.info.isolation == "plain"
    if plain and not path.startswith("/opt/ml"):
        with pytest.raises(
            ClientError, match=f"CheckpointConfig.LocalPath: {path}: at isolation level plain"
        ):
            client.create(name, "", CheckpointConfig=checkpoint_config)
        return
    script = WRITE_CHECKPOINT
    if plain:
        script = "os.environ['CKPT'] = ROOT + os.environ['CKPT'].removeprefix('/opt/ml')\n" + script
    job = client.run(name, script, CheckpointConfig=checkpoint_config, Environment={"CKPT": path})
    assert job["TrainingJobStatus"] == "Completed", (job.get("FailureReason"), client.lines(name))
    assert client.printed_lines(name)["algo-1"] == ["['step-1']"]
    assert client.keys(f"{name}/") == [f"{name}/step-1-renamed", f"{name}/step-2"]
    if not path.startswith("/tmp"):
        assert not Path(path).exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("relative/path", "an absolute path"),
        ("/a/../b", "an absolute path"),
        ("/", "a system directory"),
        ("/usr", "a system directory"),
        ("/proc/1", "a system directory"),
        ("/opt/ml", "another use"),
        ("/opt/ml/model/x", "another use"),
    ],
)
def test_invalid_checkpoint_paths(client: EndpointClient, path: str, message: str) -> None:
    with pytest.raises(ClientError, match=f"CheckpointConfig.LocalPath: .*{message}"):
        client.create("no-such-path", "", CheckpointConfig={"S3Uri": "s3://tests/x", "LocalPath": path})


WRITE_OUTPUT = """
host = json.load(open(f'{ROOT}/input/config/resourceconfig.json'))['current_host']
number = len(os.listdir(f'{ROOT}/model'))
for folder in ('model', 'output/data'):
    with open(f'{ROOT}/{folder}/same', 'w') as stream: stream.write(host)
    os.mkdir(f'{ROOT}/{folder}/dir')
    with open(f'{ROOT}/{folder}/dir/' + host, 'w') as stream: stream.write('own')
"""


@pytest.mark.parametrize("compression", ["GZIP", "NONE"])
def test_output_of_two_hosts(client: EndpointClient, compression: str) -> None:
    name = f"output-{compression}"
    output = {"S3OutputPath": "s3://tests/out", "CompressionType": compression}
    job = client.run(name, WRITE_OUTPUT, hosts=2, OutputDataConfig=output)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    plain = client.info.isolation == "plain"
    hosts = sorted(entry for entry in ("algo-1", "algo-2") if not plain)
    base = f"out/{name}/output"
    if compression == "GZIP":
        assert client.keys(base) == [f"{base}/model.tar.gz", f"{base}/output.tar.gz"]
        for archive in ("model", "output"):
            names = set(client.read_archive(f"{base}/{archive}.tar.gz"))
            assert names >= {"same", *(f"dir/{host}" for host in hosts)}
            assert len(names) == 3
        assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://tests/{base}/model.tar.gz"
    else:
        keys = client.keys(base)
        assert len(keys) == 6
        assert {f"{base}/model/same", f"{base}/output/same"} < set(keys)
        assert job["ModelArtifacts"]["S3ModelArtifacts"] == f"s3://tests/{base}/model/"
    clash_notes = [line for line in client.lines(name)["algo-2"] if "exists on algo-1 too" in line]
    assert len(clash_notes) == 2
    (warning,) = [line for line in client.lines(name)["algo-1"] if "warning: hosts have written" in line]
    assert "/opt/ml/model/same (" in warning and "/opt/ml/output/data/same (" in warning
