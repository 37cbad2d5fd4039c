"""Ranks of one host, forked from a process of the trainers' environment that has imported their libraries
already: that takes longer than all that the tests do. Run by that environment's Python. In comes one JSON
object per line, ``{"script", "arguments", "environments", "outputs"}``, the last two with an entry per rank;
out go two lines, process ids and exit codes.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from typing import Any

PRELOADED = (
    "accelerate",
    "lightning.pytorch.callbacks",
    "torch._dynamo",
    "torch.distributed.tensor",
    "transformers.trainer",
    "transformers.models.gpt2.modeling_gpt2",
)


def rank(order: dict[str, Any], number: int) -> None:
    """Runs a child; never returns."""
    out = os.open(order["outputs"][number], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(order["environments"][number])
    sys.argv = [order["script"], *order["arguments"]]
    code = 1
    try:
        runpy.run_path(order["script"], run_name="__main__")
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit(): what the parent has registered for its own end is not a rank's.
        os._exit(code)


def main() -> None:
    for name in PRELOADED:
        __import__(name)
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        children = []
        for number in range(len(order["environments"])):
            pid = os.fork()
            if pid == 0:
                rank(order, number)
            children.append(pid)
        print(json.dumps(children), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
