"""The generated parts of docs/step-functions.md.

``python -m tests.export.step_functions_page`` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from smlaunch.chain.workflow import RULE_BY_ENDING
from smlaunch.errors import EXIT_COMPLETED
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS
from smlaunch.export.sfn_after_job_end import next_states
from smlaunch.export.sfn_policies import RARE_ACTIONS, REASONS
from tests.conftest import ROOT
from tests.export.test_step_functions import MACHINES

PAGE = ROOT / "docs" / "step-functions.md"

_SHAPES = {"Task": ("[[", "]]"), "Choice": ("{", "}"), "Wait": ("([", "])"), "Succeed": ("((", "))")}


def parts() -> dict[str, str]:
    """Return the text of each generated part by the name in its markers."""
    return {
        "picture": "\n".join(_picture(MACHINES["chain"])),
        "errors": "\n".join(_errors()),
        "policies": "\n".join(_policies()),
    }


def _picture(definition: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the picture, with one node for all Fail states of an error."""
    states = definition["States"]
    ids = {name: f"s{number}" for number, name in enumerate(states)}
    yield "```mermaid"
    yield "flowchart TD"
    for name, state in states.items():
        if state["Type"] != "Fail":
            before, after = _SHAPES.get(state["Type"], ("[", "]"))
            yield f'  {ids[name]}{before}"{name}"{after}'
    ends = sorted({state["Error"] for state in states.values() if "Error" in state})
    yield from (f'  f{number}>"{error}"]' for number, error in enumerate(ends))
    for name, state in states.items():
        for following in dict.fromkeys(next_states(state)):
            end = states[following]
            if end["Type"] != "Fail":
                yield f"  {ids[name]} --> {ids[following]}"
            elif "Error" in end:
                yield f"  {ids[name]} -.-> f{ends.index(end['Error'])}"
    yield "```"


def _errors() -> Iterator[str]:
    yield "| a job ended with | remedy | the execution's Error when there is none left |"
    yield "|---|---|---|"
    for ending, rule in RULE_BY_ENDING.items():
        if rule.exit_code != EXIT_COMPLETED and rule.exit_code not in ORCHESTRATOR_ERRORS:
            continue  # only the client's machine has such errors
        yield f"| {ending.value} | {rule.remedy.value} | {_error(rule.exit_code)} |"


def _error(exit_code: int) -> str:
    return f"`{ORCHESTRATOR_ERRORS[exit_code]}` (exit code {exit_code})" if exit_code else "none"


def _policies() -> Iterator[str]:
    yield "| Sid | for |"
    yield "|---|---|"
    yield from (f"| `{sid}` | {reason} |" for sid, reason in REASONS.items())
    yield ""
    yield "| allowed, and not called by an ordinary run | when it is |"
    yield "|---|---|"
    yield from (f"| `{action}` | {when} |" for action, when in RARE_ACTIONS.items())


def update_page(page: str) -> str:
    """Return the page with its current generated parts."""
    for name, text in parts().items():
        marked = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert marked.search(page), name
        page = marked.sub(lambda match, text=text: f"{match.group(1)}{text}\n{match.group(2)}", page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))
