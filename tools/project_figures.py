"""Count what the issues ask of the project itself: `python tools/project_figures.py words`.

The last line of the output is a JSON object, which tools/evidence.py records. The exit code is 1 where a
limit that an issue sets is passed, or a tier fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import check_words
import pytest

ROOT = Path(__file__).resolve().parent.parent
MOST_ROOT_MODULES = 3
TIERS = ("unit", "endpoint", "process", "real", "chaos")
MOST_PLANNER_FILES = 32
OF_MAKE_TEST = ("unit", "endpoint", "process")
FIRST_WORDS = ("told", "kept", "carried", "whoever", "had best")
"""Issue L counted 1,003 uses of these."""


def listed_files(*folders: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()


def count_words() -> tuple[bool, dict[str, Any]]:
    """Words that are not used, exceptions, class names in two packages and modules at the root."""
    rules = check_words.read_rules(ROOT / "tools" / "words.txt")
    allowed = check_words.read_allowed(ROOT / "tools" / "words_allowed.txt")
    sources = {path: (ROOT / path).read_text() for path in listed_files("smlaunch") if path.endswith(".py")}
    packages = check_words.class_packages(sources)
    twice = sorted(name for name, owners in packages.items() if len(owners) > 1)
    uses = [
        use for path, source in sources.items() for use in check_words.uses_in_module(path, source, rules)
    ]
    pages = [path for path in listed_files("docs", "README.md", "CONTRIBUTING.md") if path.endswith(".md")]
    for page in pages:
        if not page.startswith(check_words.EXEMPT):
            uses += check_words.uses_in_text(page, (ROOT / page).read_text(), rules)
    modules = sorted(path for path in sources if path.count("/") == 1)
    not_allowed = [use for use in uses if (use.path, use.word) not in allowed]
    anywhere = Counter(
        word
        for source in sources.values()
        for word in FIRST_WORDS
        for _ in re.finditer(rf"\b{word}\b", source.replace("_", " "), re.IGNORECASE)
    )
    figures = {
        "words": len(rules),
        "exceptions": len(allowed),
        "most_exceptions": check_words.MOST_ALLOWED,
        "uses_without_an_exception": len(not_allowed),
        "uses_of_the_first_words_in_smlaunch": {word: anywhere[word] for word in FIRST_WORDS},
        "public_classes": len(packages),
        "class_names_in_two_packages": twice,
        "root_modules": modules,
    }
    good = not twice and not not_allowed and len(modules) <= MOST_ROOT_MODULES
    return good and len(allowed) <= check_words.MOST_ALLOWED, figures


def count_lines() -> tuple[bool, dict[str, Any]]:
    """Lines of Python and nodes of syntax trees by package, the longest modules and the longest function."""
    lines: Counter[str] = Counter()
    modules: dict[str, int] = {}
    nodes: Counter[str] = Counter()
    longest = (0, "")
    functions = 0
    for path in listed_files("smlaunch", "tests", "tools", "benchmarks", "entrypoints"):
        if not path.endswith(".py"):
            continue
        source = (ROOT / path).read_text()
        count = source.count("\n")
        folder, _, rest = path.partition("/")
        lines[folder] += count
        if folder != "smlaunch":
            continue
        lines[f"smlaunch/{rest.partition('/')[0]}"] += count
        modules[path] = count
        for node in ast.walk(ast.parse(source)):
            nodes[f"smlaunch/{rest.partition('/')[0]}"] += 1
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                longest = max(longest, (length, f"{path}: {node.name}"))
    return True, {
        "lines": dict(sorted(lines.items())),
        "ast_nodes": {"smlaunch": nodes.total(), **dict(sorted(nodes.items()))},
        "modules_of_smlaunch": len(modules),
        "modules_over_500_lines": {path: n for path, n in sorted(modules.items()) if n > 500},
        "functions_of_smlaunch": functions,
        "longest_function": {"lines": longest[0], "name": longest[1]},
    }


def count_formats() -> tuple[bool, dict[str, Any]]:
    """Formats with their versions, and the golden files."""
    sys.path.insert(0, str(ROOT))
    from smlaunch.contract import formats

    versions = {
        name: value.version
        for name, value in sorted(vars(formats).items())
        if isinstance(value, formats.Format)
    }
    golden = [Path(path).name for path in listed_files("tests/formats/golden")]
    previous = (ROOT / "tests" / "previous-release").read_text().split()[0]
    return True, {"versions": versions, "golden_files": len(golden), "previous_release": previous}


def count_planner() -> tuple[bool, dict[str, Any]]:
    """Files of the planner, and the rules of its registry by phase."""
    sys.path.insert(0, str(ROOT))
    from smlaunch.planner.rules import all_rules

    files = [path for path in listed_files("smlaunch/planner") if path.endswith(".py")]
    phases = Counter(rule.phase for rule in all_rules())
    figures = {"files": len(files), "most_files": MOST_PLANNER_FILES, "rules": dict(sorted(phases.items()))}
    return len(files) <= MOST_PLANNER_FILES, figures


def count_attacks(issue: str) -> tuple[bool, dict[str, Any]]:
    """What the pages of attacks say was tried, and whether each says what was done about it."""
    pages: dict[str, Any] = {}
    for path in sorted((ROOT / "docs" / "attacks").glob(f"{issue}-*.md")):
        text = path.read_text()
        found = re.search(r"^\W*tried .*$", text, re.MULTILINE | re.IGNORECASE)
        line = found[0].strip() if found else ""
        numbers = re.findall(r"\b(tried|held|broken) (?:about )?([\d,]*\d)", line, re.IGNORECASE)
        pages[path.stem] = {
            "says": line,
            **{word.lower(): int(number.replace(",", "")) for word, number in numbers},
            "has_brief": "## The brief" in text,
            "says_what_was_done": "## What was done" in text,
        }
    needed = ("has_brief", "says_what_was_done", "tried", "broken")
    is_whole = all(
        page.get(name) is not None and page[name] is not False for page in pages.values() for name in needed
    )
    return bool(pages) and is_whole, {"pages": pages}


class Collected:
    """A pytest plugin that counts the tests of each tier."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.tests.update(tier for tier in TIERS if item.get_closest_marker(tier))


def count_tiers(run: bool) -> tuple[bool, dict[str, Any]]:
    """Tests by tier; with ``run``, also the outcomes and seconds of the tiers that `make test` runs."""
    collected = Collected()
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    code = pytest.main(["-q", "-q", "--collect-only", "-m", " or ".join(TIERS)], plugins=[collected])
    tiers: dict[str, dict[str, Any]] = {tier: {"tests": collected.tests[tier]} for tier in TIERS}
    for tier in OF_MAKE_TEST if run else ():
        command = [sys.executable, "-m", "pytest", "-q", "-m", tier, "--numprocesses", "auto"]
        tiers[tier]["load"] = [round(load, 1) for load in os.getloadavg()]
        started = time.monotonic()
        done = subprocess.run([*command, "--dist", "loadfile"], stdout=subprocess.PIPE, text=True)
        tiers[tier]["seconds"] = round(time.monotonic() - started, 1)
        print(done.stdout)
        last = done.stdout.rstrip().splitlines()[-1]
        outcomes = re.findall(r"(\d+) (passed|failed|skipped|error)", last)
        tiers[tier] |= {name: int(count) for count, name in outcomes}
        tiers[tier]["exit_code"] = done.returncode
    good = code == 0 and not any(tier.get("exit_code") for tier in tiers.values())
    return good, {"tiers": tiers}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("words", "lines", "formats", "planner", "attacks", "tiers"))
    parser.add_argument("--issue", default="K", help="of the attacks")
    parser.add_argument(
        "--run", action="store_true", help="run the tiers of `make test`, which takes minutes"
    )
    options = parser.parse_args(arguments)
    counters: dict[str, Callable[[], tuple[bool, dict[str, Any]]]] = {
        "words": count_words,
        "lines": count_lines,
        "formats": count_formats,
        "planner": count_planner,
        "attacks": lambda: count_attacks(options.issue),
        "tiers": lambda: count_tiers(options.run),
    }
    good, figures = counters[options.what]()
    print(json.dumps(figures))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
