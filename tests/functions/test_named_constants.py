"""Secrets that stand in a function's code, whatever stands around them."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.functions.call_secrets import find_call_secret
from smlaunch.functions.named_constants import named_constants
from smlaunch.functions.pickled_call import pickle_call

SECRET = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
MANY_ITEMS = " ".join(f"'k{number}': x," for number in range(30))

STATEMENTS = [
    "os.environ['HF_TOKEN'] = 'SECRET'",
    "os.environb[b'HF_TOKEN'] = b'SECRET'",
    "os.environ['HF_TOKEN'] = os.environ.get('X') or 'SECRET'",
    "os.environ['HF_TOKEN'] = 'SECRET' if x else make('x')",
    "os.environ['HF_TOKEN'] = make('x') if x else 'SECRET'",
    "os.environ.setdefault('HF_TOKEN', 'SECRET')",
    "os.environ |= {'a': make(), 'HF_TOKEN': 'SECRET'}",
    "os.environ.update({'HF_TOKEN': 'SECRET', 'a': make()}, **x)",
    "x.config.db['HF_TOKEN'] = 'SECRET'",
    "x[0].client.hf_token = 'SECRET'",
    "make('h', hf_token='SECRET', user=make(), timeout=-x)",
    "make(*x, hf_token='SECRET', **x)",
    "make(f'{x}', headers={'hf_token': 'SECRET'})",
    "make(['--hf-token', 'SECRET', x])",
    "make({" + MANY_ITEMS + " 'hf_token': 'SECRET'})",
    "user, hf_token = 'bob', 'SECRET'",
    "user, hf_token = x, 'SECRET'",
    "hf_token = other = 'SECRET'",
    "other = hf_token = 'SECRET'",
    "make(hf_token := 'SECRET')",
    "hf_token = b'SECRET'",
    "hf_token = 'SECRET'.encode()",
    "def g(host, hf_token='SECRET'): pass",
    "def g(host=x, hf_token='SECRET', *, y=1) -> int: return x",
    "def g(host, *, hf_token='SECRET'): pass",
    "make(lambda hf_token='SECRET': 1)",
    "class A:\n  def g(self, hf_token='SECRET'): pass",
    "hf_passwords = ['word', 'other', 'SECRET']",
    "hf_passwords = [x, 'SECRET']",
    "for i in x:\n  if i: continue\n  x.a.hf_token = 'SECRET'",
    "try: x()\nexcept ValueError: x.a.hf_token = 'SECRET'\nfinally: x()",
    "with open(x) as x.file: x.a.hf_token = 'SECRET'",
    "return {'hf_token': 'SECRET', 'a': x()}",
]

OTHER_STATEMENTS = [
    "os.environ['TOKEN_PATH'] = os.environ['HF_TOKEN'] + 'SECRET'",
    "x.hf_token, x.path = make('x'), 'SECRET'",
    "make('token', path='SECRET', hf_token=x)",
    "make('hf_token' if x else 'name'); y = 'SECRET'",
    "hf_token = make('SECRET') if x else None",
    "x['SECRET'] = 'hf_token'",
    "hf_token, path = x, 'SECRET'",
    "def g(hf_token, path='SECRET'): pass",
    "hf_token = lambda path='SECRET': path",
    "hf_token = x.encode()",
]


def function_with(statement: str) -> Any:
    lines = statement.replace("SECRET", SECRET).split("\n")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f(x, make):\n " + "\n ".join(lines), names)
    return names["f"]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_secret_in_the_code_is_found(statement: str) -> None:
    kind = find_call_secret(pickle_call(function_with(statement), (), {}, "f"))
    name = str(kind).removeprefix("the value of ").strip("-").replace("-", "_").lower()
    assert name in ("hf_token", "hf_passwords")


@pytest.mark.parametrize("statement", OTHER_STATEMENTS)
def test_a_text_beside_a_secrets_name_is_none(statement: str) -> None:
    assert find_call_secret(pickle_call(function_with(statement), (), {}, "f")) is None


def test_a_statement_changes_nothing_for_those_after_it() -> None:
    def pairs_of(text: str) -> list[tuple[str, Any]]:
        return [pair for pair in named_constants(function_with(text).__code__) if SECRET in str(pair[1])]

    statements = [text for text in [*OTHER_STATEMENTS, *STATEMENTS] if not text.startswith("return")]
    assert pairs_of("\n".join(statements)) == [pair for text in statements for pair in pairs_of(text)]
