"""Run as a program: an endpoint, embedded here or in the background, that tests may kill.

    python -m tests.local.endpoint_process HOME LEVEL embedded|background SETTINGS

Prints the endpoint's address as one line of JSON. Embedded, it serves until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from smlaunch.local import background_endpoint
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings


def main(home: str, level: str, kind: str, settings: str) -> None:
    chosen = Settings(**json.loads(settings))
    if kind == "background":
        info = background_endpoint.start_endpoint(Path(home), isolation=level, settings=chosen)
        print(json.dumps(json.loads(info.to_json())), flush=True)
        return
    endpoint = Endpoint(Path(home), isolation=level, settings=chosen)
    print(json.dumps(json.loads(endpoint.start().to_json())), flush=True)
    sys.stdin.read()
    endpoint.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
