"""Plan every job file of this folder with a given smlaunch, and print what it says of each.

    python tests/requests/run.py path/to/smlaunch [bad/15 good ...]

No account, no network and no settings of the user are needed or used. The exit code is 0 if all cases
pass.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parent
SECONDS = 60  # far more than a plan takes; a job file that makes it longer is an attack
MEMORY = 4 << 30
PASSED = ("refused", "accepted")
UNKNOWN_FIELD = "no such field"


@dataclass
class Answer:
    """What smlaunch has said of one job file."""

    code: int | None  # None: it was ended after SECONDS
    document: dict[str, Any]
    seconds: float

    @property
    def problems(self) -> list[dict[str, str]]:
        error = self.document.get("error")
        return error.get("problems", []) if isinstance(error, dict) else []


@dataclass
class Result:
    case: str
    code: int | None
    field: str
    expected: str
    verdict: str
    message: str
    others: int  # problems besides the one that was expected

    @property
    def passed(self) -> bool:
        good = self.case.startswith("good/")
        return self.verdict == PASSED[good]


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def plan(smlaunch: str, file: str, arguments: str) -> Answer:
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": home,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [smlaunch, "plan", file, *shlex.split(arguments), "--json"],
                cwd=FOLDER,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                preexec_fn=limit_memory,
            )
        except subprocess.TimeoutExpired:
            return Answer(None, {}, time.monotonic() - begin)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        document = {}
    return Answer(done.returncode, document if isinstance(document, dict) else {}, time.monotonic() - begin)


def is_at(path: str, field: str, file: str) -> bool:
    """Whether a problem's path is the field, or is below it. A field "line 9" means that line of the file."""
    path = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", path)
    if field == "any line":
        return re.fullmatch(rf"{re.escape(file)}(:\d+)*", path) is not None
    if field.startswith("line "):
        return re.fullmatch(rf"{re.escape(file)}:{field[5:]}(:\d+)?", path) is not None
    return path == field or (field != "" and path.startswith((field + ".", field + "[")))


def has_words(message: str, words: list[str]) -> bool:
    text = message.lower()
    return all(any(word.lower() in text for word in alternatives.split("|")) for alternatives in words)


def judge_bad(case: str, file: str, entry: dict[str, Any], answer: Answer) -> Result:
    fields, words = entry["field"], [str(word) for word in entry["words"]]
    at_field = [p for p in answer.problems if any(is_at(p["path"], field, file) for field in fields)]
    right = [p for p in at_field if has_words(p["message"], words) and "unknown key" not in p["message"]]
    # A misspelt member has to be called unknown; elsewhere that says only that smlaunch lacks the field.
    if case.endswith("-misspelt"):
        right = [p for p in at_field if has_words(p["message"], words)]
    unknown = [p for p in answer.problems if "unknown key" in p["message"]]
    reported = (right or at_field or unknown or answer.problems or [{"path": "", "message": ""}])[0]
    if answer.code is None:
        verdict = f"longer than {SECONDS} s"
    elif answer.code == 0:
        verdict = "accepted"
    elif answer.code != 2:
        verdict = "other exit code"
    elif right:
        verdict = "refused"
    elif unknown:
        verdict, reported = UNKNOWN_FIELD, unknown[0]
    else:
        verdict = "other words" if at_field else "other field"
    others = len([p for p in answer.problems if p is not reported])
    return Result(
        case, answer.code, reported["path"], " or ".join(fields), verdict, reported["message"], others
    )


def find_member(value: Any, path: str) -> Any:
    """A member of a request: A.B, A[0] by place, A[train] by the name of a channel or an output."""
    for name, key in re.findall(r"([A-Za-z0-9]+)|\[([^\]]*)\]", path):
        if name:
            value = value.get(name) if isinstance(value, dict) else None
        elif not isinstance(value, list):
            return None
        elif key.isdigit():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            named = [x for x in value if key in (x.get("ChannelName"), x.get("OutputName"))]
            value = named[0] if named else None
    return value


def is_value(sent_value: Any, expected: Any) -> bool:
    if isinstance(expected, str) and expected.startswith("~"):
        return isinstance(sent_value, str) and re.search(expected[1:], sent_value) is not None
    return bool(sent_value == expected)


def judge_good(case: str, entry: dict[str, Any], answer: Answer) -> Result:
    if answer.code is None:
        return Result(case, None, "", "", f"longer than {SECONDS} s", "", 0)
    if answer.code != 0:
        unknown = [p for p in answer.problems if "unknown key" in p["message"]]
        reported = (unknown or answer.problems or [{"path": "", "message": ""}])[0]
        verdict = UNKNOWN_FIELD if unknown else "refused" if answer.code == 2 else "other exit code"
        others = max(len(answer.problems) - 1, 0)
        return Result(case, answer.code, reported["path"], "", verdict, reported["message"], others)
    requests = answer.document.get("requests") or [{}]
    for path, expected in entry["request"].items():
        sent_value = find_member(requests[0], path)
        if not is_value(sent_value, expected):
            message = f"the request has {sent_value!r}, expected {expected!r}"
            return Result(case, 0, path, "", "other request", message, 0)
    return Result(case, 0, "", "", "accepted", "", 0)


def check(smlaunch: str, kind: str, name: str, entry: dict[str, Any]) -> Result:
    case, file = f"{kind}/{name}", f"{kind}/{name}.yaml"
    answer = plan(smlaunch, file, entry["arguments"])
    return judge_bad(case, file, entry, answer) if kind == "bad" else judge_good(case, entry, answer)


def print_counts(results: list[Result]) -> None:
    for kind in ("bad", "good"):
        of_kind = [r for r in results if r.case.startswith(kind + "/")]
        if of_kind:
            verdicts = Counter(r.verdict for r in of_kind)
            counts = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common())
            print(f"{kind}: {sum(r.passed for r in of_kind)} of {len(of_kind)} pass ({counts})")


def print_table(results: list[Result]) -> None:
    print("| case | exit | field reported | field expected | verdict | text |")
    print("|---|---|---|---|---|---|")
    for r in results:
        text = r.message if len(r.message) <= 160 else r.message[:157] + "..."
        if r.others:
            text += f" (and {r.others} more)"
        verdict = r.verdict if r.passed else f"**{r.verdict}**"
        cells = (r.case, "-" if r.code is None else str(r.code), r.field, r.expected, verdict, text)
        print("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    smlaunch, wanted = sys.argv[1], tuple(sys.argv[2:])
    smlaunch = str(Path(smlaunch).absolute()) if "/" in smlaunch else smlaunch
    cases = yaml.safe_load((FOLDER / "cases.yaml").read_text())
    chosen = [
        (kind, name, entry)
        for kind in ("bad", "good")
        for name, entry in cases[kind].items()
        if not wanted or f"{kind}/{name}".startswith(wanted)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda case: check(smlaunch, *case), chosen))
    print_counts(results)
    print()
    print_table(results)
    return 0 if all(r.passed for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
