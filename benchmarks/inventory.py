"""How long an inventory takes: ours, boto3's paginator and obstore, against the same listing service.

The service is a process of its own that has every key's XML ready and answers after a wait, as S3 does (some
60 ms for a page of a thousand keys); with no wait, what is timed is the client's own work.

    python benchmarks/inventory.py [KEYS]
"""

from __future__ import annotations

import socket
import sys
import tempfile
import threading
import time
from bisect import bisect_left, bisect_right
from multiprocessing import Process, Queue
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import interleave, report

WAITS = (0.0, 0.06)
HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
)
ENTRY = (
    "<Contents><Key>{}</Key><LastModified>2026-11-21T12:34:56.000Z</LastModified>"
    "<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>{}</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)


def serve(count: int, wait: float, ready: Queue[int]) -> None:
    keys = [f"class-{number % 100:03d}/img_{number:08d}.jpg" for number in range(count)]
    keys.sort()
    entries = [ENTRY.format(key, len(key)).encode() for key in keys]
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    ready.put(listening.getsockname()[1])

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                while lines.readline() not in (b"\r\n", b""):
                    pass
                asked = parse_qs(urlsplit(line.split()[1].decode()).query)
                after = asked.get("continuation-token", asked.get("start-after", [""]))[0]
                start = max(bisect_left(keys, asked.get("prefix", [""])[0]), bisect_right(keys, after))
                end = min(start + 1000, count)
                facts = f"<IsTruncated>{'true' if end < count else 'false'}</IsTruncated>"
                facts += "<Name>bucket</Name><Prefix></Prefix><MaxKeys>1000</MaxKeys>"
                facts += f"<KeyCount>{end - start}</KeyCount>"
                if end < count:
                    facts += f"<NextContinuationToken>{keys[end - 1]}</NextContinuationToken>"
                if "encoding-type" in asked:
                    facts += "<EncodingType>url</EncodingType>"
                parts = [HEAD.encode(), facts.encode(), *entries[start:end], b"</ListBucketResult>"]
                body = b"".join(parts)
                time.sleep(wait)
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                connection.sendall(head.encode() + body)

    while True:
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def ours(url: str, count: int, out: Path) -> float:
    from smlaunch.aws.s3_pager import S3Pager
    from smlaunch.data.parallel_listing import list_prefix
    from smlaunch.runs.launch_target import Target

    began = time.monotonic()
    pages = S3Pager(Target.endpoint(url, "us-east-1", "a", "b").client("s3"))
    counts = list_prefix(pages, "bucket", "", out)
    seconds = time.monotonic() - began
    if counts.objects != count:
        raise SystemExit(f"ours: {counts}")
    return seconds


def boto3_pages(url: str, count: int) -> float:
    import boto3

    began = time.monotonic()
    session = boto3.Session("a", "b", region_name="us-east-1")
    client: Any = session.client("s3", endpoint_url=url)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
    found = sum(len(page.get("Contents", ())) for page in pages)
    if found != count:
        raise SystemExit(f"boto3: {found}")
    return time.monotonic() - began


def obstore_list(url: str, count: int) -> float:
    import obstore

    began = time.monotonic()
    options: Any = {"allow_http": True}
    store = obstore.store.S3Store(
        "bucket",
        endpoint=url,
        access_key_id="a",
        secret_access_key="b",
        region="us-east-1",
        client_options=options,
        virtual_hosted_style_request=False,
    )
    found = sum(len(chunk) for chunk in obstore.list(store))
    if found != count:
        raise SystemExit(f"obstore: {found}")
    return time.monotonic() - began


def main(count: int) -> None:
    for wait in WAITS:
        ready: Queue[int] = Queue()
        server = Process(target=serve, args=(count, wait, ready), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{ready.get()}"
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "keys.parquet")
            figures = interleave(
                {
                    "boto3's paginator, counting only": lambda url=url: boto3_pages(url, count),
                    "obstore.list, counting only": lambda url=url: obstore_list(url, count),
                    "smlaunch data inventory, to the file": lambda url=url, out=out: ours(url, count, out),
                },
                rounds=3,
            )
        server.terminate()
        print(f"{count:,} keys, {wait * 1000:.0f} ms a page")
        report(figures, "boto3's paginator, counting only")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
