"""The script that the AWS CLI's and boto3's jobs run on each host; a hyperparameter chooses its end."""

import json
import os
import signal
import sys
import time
from pathlib import Path

ML = Path("/opt/ml")
host = json.loads((ML / "input/config/resourceconfig.json").read_text())["current_host"]
end = json.loads((ML / "input/config/hyperparameters.json").read_text())["end"]


def leave(number: int, frame: object) -> None:
    print(host, "leaves", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, leave)
print(host, "has", json.dumps(sorted(os.listdir(ML / "input/data/train"))), flush=True)
if end == "many lines":
    for number in range(12_000):
        print("line", number)
if end == "fail" and host == "algo-2":
    (ML / "output/failure").write_text(f"planted on {host}")
    sys.exit(3)
if end in ("sleep", "fail"):
    time.sleep(600)
(ML / "model" / host).write_text("done")
