"""Fits a line to every host's own part of the data, in step with the other hosts, by the standard library.

Each step every host computes the gradient over its own rows; the first host averages them all and tells
everybody. What SageMaker promises is all it uses: resourceconfig.json, channels, hyperparameters,
/opt/ml/model, SIGTERM two minutes before SIGKILL, and an exit code.
"""

import json
import re
import signal
import socket
import sys
import time
from pathlib import Path

ML = Path("/opt/ml")
PORT = 7777
PATIENCE = 120  # seconds, until all hosts have come up


class Peers:
    """The first host and its followers, each with one connection to it. Messages are lines of JSON."""

    def __init__(self, hosts, me):
        self.is_first = me == hosts[0]
        self.links = self.accept(len(hosts) - 1) if self.is_first else [self.connect(hosts[0])]
        self.files = [link.makefile("rw", encoding="utf-8", newline="\n") for link in self.links]

    def accept(self, count):
        with socket.create_server(("", PORT)) as server:
            server.settimeout(PATIENCE)
            return [server.accept()[0] for _ in range(count)]

    def connect(self, first):
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                link = socket.create_connection((first, PORT), timeout=PATIENCE)
                link.settimeout(None)
                return link
            except OSError:
                # Not up yet, or its name is not known yet.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def mean(self, values):
        """Of all hosts' lists, weighted by their last element, the number of rows."""
        if not self.is_first:
            self.write(self.files[0], values)
            return json.loads(self.files[0].readline())
        parts = [values, *(json.loads(file.readline()) for file in self.files)]
        rows = sum(part[-1] for part in parts)
        mean = [sum(part[index] * part[-1] for part in parts) / rows for index in range(len(values) - 1)]
        for file in self.files:
            self.write(file, mean)
        return mean

    @staticmethod
    def write(file, values):
        file.write(json.dumps(values) + "\n")
        file.flush()


def by_number(host):
    """algo-2 before algo-10; the file's own order is that of words."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", host)]


def main():
    config = json.loads((ML / "input/config/resourceconfig.json").read_text())
    wanted = json.loads((ML / "input/config/hyperparameters.json").read_text())
    hosts, me = sorted(config["hosts"], key=by_number), config["current_host"]
    leaving = []
    signal.signal(signal.SIGTERM, lambda *_: leaving.append(True))
    files = sorted((ML / "input/data/train").glob("*.csv"))
    # Every host has all files here: it takes its share. With ShardedByS3Key it would take what it finds.
    mine = files[hosts.index(me) :: len(hosts)]
    rows = [tuple(map(float, line.split(","))) for file in mine for line in file.read_text().split()]
    print(f"{me} of {hosts}: {len(rows)} rows of {len(mine)} files, called with {sys.argv[1:]}")
    peers = Peers(hosts, me)
    slope = intercept = 0.0
    rate = float(wanted.get("lr", "0.1"))
    steps = int(wanted.get("steps", "500"))
    for step in range(steps):
        count = max(1, len(rows))
        errors = [(slope * x + intercept - y, x) for x, y in rows]
        gradient = [sum(e * x for e, x in errors) / count, sum(e for e, _ in errors) / count]
        # Who is asked to leave tells the others: all leave after the same step.
        by_slope, by_intercept, left = peers.mean([*gradient, float(bool(leaving)), len(rows)])
        slope -= rate * by_slope
        intercept -= rate * by_intercept
        if left:
            print(f"{me}: asked to leave after step {step}")
            break
    result = {"slope": slope, "intercept": intercept, "steps": step + 1}
    (ML / f"model/{me}.json").write_text(json.dumps(result))
    print(f"{me}: {result}")


if __name__ == "__main__":
    main()
