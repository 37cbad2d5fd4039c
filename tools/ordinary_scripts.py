"""Run all twenty scripts of tests/ordinary, of which `make test-real` runs some, and print a table of them.

The last line is a JSON object: how many ran untouched, how many with the one line that the plan printed, how
many did not, and the seconds that all took. The exit code is 1 if a script did not run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
TEST_FILE = "tests/real/test_ordinary_scripts.py"
RESULTS = ("untouched", "with the line of the plan", "not run")


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.real.test_ordinary_scripts import ALL_CASES, CASES

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", TEST_FILE, f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, env={**os.environ, ALL_CASES: "1"}, stdout=sys.stderr)
        tests = ElementTree.parse(report).iter("testcase")
        passed = {test.get("name", "") for test in tests if not len(test)}
    counts = dict.fromkeys(RESULTS, 0)
    for case in CASES:
        has_run = f"test_it_runs_on_two_hosts[{case.name}]" in passed
        result = RESULTS[1 if case.has_line_to_change else 0] if has_run else RESULTS[2]
        counts[result] += 1
        print(f"{case.name:28} {result}")
    print(json.dumps({**counts, "seconds": round(time.monotonic() - began)}))
    sys.exit(1 if counts[RESULTS[2]] else 0)


if __name__ == "__main__":
    main()
