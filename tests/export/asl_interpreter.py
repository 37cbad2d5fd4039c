"""An interpreter of the States Language as far as exported definitions use it; it executes thousands of runs
in a second.

It was written from the specification; moto's interpreter executes some of the same runs
(``tests/real/test_moto_step_functions.py``).
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from typing import Any

Call = Callable[[str, dict[str, Any]], Any]
"""Executes a task: takes its integration and parameters, returns its result. Raises ``Failed``."""

MOST_STATES = 20_000


class Failed(Exception):
    def __init__(self, error: str, cause: str = "") -> None:
        self.error, self.cause = error, cause
        super().__init__(f"{error}: {cause}")


class Execution:
    """``trace``: the states that were entered. ``slept``: seconds of Wait states."""

    def __init__(self, definition: dict[str, Any], call: Call, name: str) -> None:
        self.states = definition["States"]
        self.start = definition["StartAt"]
        self.call = call
        self.context = {
            "Execution": {"Name": name, "Id": f"arn:{name}"},
            "StateMachine": {"Id": "arn:machine"},
        }
        self.trace: list[str] = []
        self.slept = 0

    def run(self, execution_input: Any) -> Any:
        """Execute the machine and return its output. Raises Failed if the execution fails."""
        data, name = execution_input, self.start
        while True:
            self.trace.append(name)
            assert len(self.trace) < MOST_STATES, "the machine does not end"
            state = self.states[name]
            kind = state["Type"]
            if kind == "Succeed":
                return self.value(state.get("OutputPath", "$"), data)
            if kind == "Fail":
                error = self.value(state["ErrorPath"], data) if "ErrorPath" in state else state["Error"]
                cause = self.value(state["CausePath"], data) if "CausePath" in state else state["Cause"]
                raise Failed(error, cause)
            if kind == "Choice":
                chosen = [rule for rule in state["Choices"] if self.holds(rule, data)]
                name = chosen[0]["Next"] if chosen else state["Default"]
            elif kind == "Wait":
                self.slept += (
                    state["Seconds"] if "Seconds" in state else self.value(state["SecondsPath"], data)
                )
                name = state["Next"]
            elif kind == "Map":
                data, name = self.put(self.each(state, data), state["ResultPath"], data), state["Next"]
            elif kind == "Pass":
                data = self.put(self.build(state["Parameters"], data), state.get("ResultPath", "$"), data)
                if state.get("End"):
                    return data
                name = state["Next"]
            else:
                data, name = self.task(state, data)

    def each(self, state: dict[str, Any], data: Any) -> list[Any]:
        """Execute a Map. Items of a Distributed Map run in child executions with a machine of their own."""
        results = []
        reader = state.get("ItemReader")
        if reader is None:
            items = self.value(state["ItemsPath"], data)
        else:
            items = json.loads(self.call(reader["Resource"].split(":::")[1], reader["Parameters"])["Body"])
        for item in items:
            inner = Execution(state["ItemProcessor"], self.call, "")
            inner.context = {**self.context, "Map": {"Item": {"Value": item}}}
            item_input = inner.build(state["ItemSelector"], data)
            if state["ItemProcessor"]["ProcessorConfig"]["Mode"] == "DISTRIBUTED":
                inner.context = {
                    "Execution": {"Name": f"child-{len(results)}", "Id": f"arn:child-{len(results)}"},
                    "StateMachine": {"Id": f"arn:machine/{state['Label']}"},
                }
            results.append(inner.run(item_input))
        return results

    def task(self, state: dict[str, Any], data: Any) -> tuple[Any, str]:
        integration = state["Resource"].split(":::")[1]
        for retry in range(100):
            try:
                result = self.call(integration, self.build(state["Parameters"], data))
                if "ResultSelector" in state:
                    result = self.build(state["ResultSelector"], result)
                return self.put(result, state["ResultPath"], data), str(state["Next"])
            except Failed as error:
                if any(
                    matches(error.error, rule["ErrorEquals"]) and retry < rule["MaxAttempts"]
                    for rule in state.get("Retry", [])
                ):
                    continue
                for rule in state.get("Catch", []):
                    if matches(error.error, rule["ErrorEquals"]):
                        error_output = {"Error": error.error, "Cause": error.cause}
                        return self.put(error_output, rule["ResultPath"], data), str(rule["Next"])
                raise
        raise AssertionError("retried without end")

    # ---- values -------------------------------------------------------------------------------------------

    def put(self, result: Any, path: str | None, data: Any) -> Any:
        if path is None:
            return data
        if path == "$":
            return result
        _, key, *rest = path.split(".")
        inner = self.put(result, ".".join(["$", *rest]), data.get(key, {}))
        return {**data, key: inner}

    def build(self, template: Any, data: Any) -> Any:
        if isinstance(template, dict):
            return {
                key.removesuffix(".$"): self.value(item, data)
                if key.endswith(".$")
                else self.build(item, data)
                for key, item in template.items()
            }
        return [self.build(item, data) for item in template] if isinstance(template, list) else template

    def value(self, text: str, data: Any) -> Any:
        if text.startswith("$$."):
            return lookup(text[2:], self.context)
        if text.startswith("$"):
            return lookup(text[1:], data)
        value, rest = self.expression(text, data)
        assert not rest, f"{rest!r} is left of {text!r}"
        return value

    def expression(self, text: str, data: Any) -> tuple[Any, str]:
        text = text.lstrip()
        if text.startswith("'"):
            end = re.match(r"'((?:[^'\\]|\\.)*)'", text)
            assert end, text
            return end.group(1), text[end.end() :]
        match = re.match(r"States\.(\w+)\(", text)
        if match is None:
            word = re.match(r"[^,()]+", text)
            assert word, text
            rest = text[word.end() :]
            plain = word.group().strip()
            return (self.value(plain, data) if plain.startswith("$") else json.loads(plain)), rest
        rest, arguments = text[match.end() :], []
        while True:
            value, rest = self.expression(rest, data)
            arguments.append(value)
            rest = rest.lstrip()
            if rest[0] == ")":
                return self.function(match.group(1), arguments), rest[1:]
            assert rest[0] == ",", rest
            rest = rest[1:]

    def function(self, name: str, arguments: list[Any]) -> Any:
        first = unescape(arguments[0]) if isinstance(arguments[0], str) and name != "Format" else arguments[0]
        if name == "Format":
            pieces = re.split(r"(?<!\\)\{\}", arguments[0])
            assert len(pieces) == len(arguments), arguments
            texts = [item if isinstance(item, str) else json.dumps(item) for item in arguments[1:]]
            return "".join(unescape(a) + b for a, b in zip(pieces, [*texts, ""], strict=True))
        if name == "MathAdd":
            assert all(type(item) is int for item in arguments), arguments
            return arguments[0] + arguments[1]
        if name == "StringToJson":
            try:
                return json.loads(first)
            except ValueError as error:
                raise Failed("States.IntrinsicFailure", str(error)) from None
        if name == "JsonMerge":
            assert arguments[2] is False
            return {**arguments[0], **arguments[1]}
        if name == "JsonToString":
            return json.dumps(arguments[0])
        if name == "ArrayContains":
            return arguments[1] in arguments[0]
        if name == "ArrayGetItem":
            return arguments[0][arguments[1]]
        raise AssertionError(f"States.{name} is not known here")

    # ---- choices ------------------------------------------------------------------------------------------

    def holds(self, rule: dict[str, Any], data: Any) -> bool:
        if "And" in rule:
            return all(self.holds(part, data) for part in rule["And"])
        if "Or" in rule:
            return any(self.holds(part, data) for part in rule["Or"])
        if "Not" in rule:
            return not self.holds(rule["Not"], data)
        ((comparison, wanted),) = ((k, v) for k, v in rule.items() if k not in ("Variable", "Next"))
        if comparison == "IsPresent":
            try:
                self.value(rule["Variable"], data)
            except Failed:
                return not wanted
            return bool(wanted)
        value = self.value(rule["Variable"], data)
        if comparison.endswith("Path"):
            comparison, wanted = comparison.removesuffix("Path"), self.value(wanted, data)
        return compare(comparison, value, wanted)


def compare(comparison: str, value: Any, wanted: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if comparison.startswith("Is"):
        kinds = {"IsNull": value is None, "IsString": isinstance(value, str), "IsNumeric": number}
        return kinds[comparison] is wanted
    if comparison == "StringMatches":
        pattern = re.sub(r"[\[\]?]", lambda match: f"[{match.group()}]", wanted)
        return isinstance(value, str) and fnmatch.fnmatchcase(value, pattern)
    if comparison == "StringEquals":
        return isinstance(value, str) and value == wanted
    if comparison == "BooleanEquals":
        return isinstance(value, bool) and value is wanted
    orders: dict[str, Callable[[Any, Any], bool]] = {
        "NumericEquals": lambda a, b: a == b,
        "NumericLessThan": lambda a, b: a < b,
        "NumericLessThanEquals": lambda a, b: a <= b,
        "NumericGreaterThan": lambda a, b: a > b,
        "NumericGreaterThanEquals": lambda a, b: a >= b,
    }
    return number and orders[comparison](value, wanted)


def lookup(path: str, data: Any) -> Any:
    chosen = re.fullmatch(r"(.*)\[\?\(@\.(\w+) == '(.*)'\)\](.*)", path)
    if chosen:
        head, key, wanted, rest = chosen.groups()
        return [lookup(rest, item) for item in lookup(head, data) if item[key] == wanted]
    head, wildcard, rest = path.partition("[*]")
    if wildcard:
        return [lookup(rest, item) for item in lookup(head, data)]
    for key in path.split(".")[1:]:
        if not isinstance(data, dict) or key not in data:
            raise Failed("States.Runtime", f"{path} is not there")
        data = data[key]
    return data


def matches(error: str, wanted: list[str]) -> bool:
    return error in wanted or (error != "States.Runtime" and "States.ALL" in wanted)


def unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
