"""An account whose S3 prefixes have the bytes and objects of expected.yaml, for a plan that knows them.

    python sized_listing.py 8077 04-xgboost-500gb

Then plan that workload with AWS_ENDPOINT_URL=http://127.0.0.1:8077, any keys, and --role with an ARN. Of
other services it answers who the caller is, and an empty list of quotas.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

HERE = Path(__file__).parent
PAGE = 1000


def prefixes(name: str) -> dict[tuple[str, str], tuple[int, int]]:
    expected = yaml.safe_load((HERE / "expected.yaml").read_text())
    data = next(each["data"] for each in expected["workloads"] if each["name"] == name)
    inputs: dict[str, Any] = yaml.safe_load((HERE / name / "job.yaml").read_text())["inputs"]
    result = {}
    for channel, channel_input in inputs.items():
        uri = channel_input if isinstance(channel_input, str) else channel_input["uri"]
        bucket, _, prefix = uri.removeprefix("s3://").partition("/")
        result[bucket, prefix] = (data[channel]["bytes"], data[channel]["objects"])
    return result


class Handler(BaseHTTPRequestHandler):
    known: dict[tuple[str, str], tuple[int, int]]
    protocol_version = "HTTP/1.1"

    def reply(self, body: str, status: int = 200, kind: str = "application/xml") -> None:
        content = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("x-amz-bucket-region", "us-east-1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.reply("")

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket = parts.path.strip("/").partition("/")[0]
        if "location" in query:
            return self.reply("<LocationConstraint/>")
        prefix = query.get("prefix", "")
        base, size = next(
            ((p, size) for (b, p), size in self.known.items() if b == bucket and prefix.startswith(p)),
            ("", None),
        )
        if "list-type" not in query or size is None:
            return self.reply(
                f"<ListBucketResult><Name>{bucket}</Name><Prefix>{prefix}</Prefix><KeyCount>0</KeyCount>"
                "<IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        after = query.get("continuation-token") or query.get("start-after") or ""
        first = int(after.rpartition("-")[2][:10]) + 1 if "-" in after.removeprefix(base) else 0
        count = min(int(query.get("max-keys", PAGE)), PAGE)
        last = min(first + count, size[1])
        rows = "".join(
            f"<Contents><Key>{base}part-{i:010}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{i:032x}"</ETag><Size>{size[0] // size[1]}</Size></Contents>'
            for i in range(first, last)
        )
        more = last < size[1]
        token = f"<NextContinuationToken>{base}part-{last - 1:010}</NextContinuationToken>" if more else ""
        return self.reply(
            f"<ListBucketResult><Name>{bucket}</Name><Prefix>{prefix}</Prefix><MaxKeys>{count}</MaxKeys>"
            f"<KeyCount>{last - first}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{rows}</ListBucketResult>"
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        target = self.headers.get("X-Amz-Target", "")
        if "Action=GetCallerIdentity" in body:
            return self.reply(
                '<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>'
                "<Arn>arn:aws:iam::111122223333:user/u</Arn><UserId>U</UserId><Account>111122223333</Account>"
                "</GetCallerIdentityResult></GetCallerIdentityResponse>"
            )
        if "ListServiceQuotas" in target:
            return self.reply(json.dumps({"Quotas": []}), kind="application/x-amz-json-1.1")
        print("not known:", target, body[:200], file=sys.stderr)
        return self.reply(json.dumps({"__type": "AccessDeniedException"}), 400, "application/x-amz-json-1.1")

    def log_message(self, format: str, *arguments: object) -> None:
        pass


if __name__ == "__main__":
    Handler.known = prefixes(sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
