"""A command that runs for hours collects its cyclic garbage."""

from __future__ import annotations

import subprocess
import sys

import click

from smlaunch.cli.main import LazyGroup, cli

PROGRAM = """
import os, sys, weakref
from smlaunch.cli import main as program

class Part:
    pass

def works_on(*_, **__):
    references = []
    for number in range(400_000):
        part = Part()
        part.itself = part
        if number % 10_000 == 0:
            references.append(weakref.ref(part))
    alive = [ref for ref in references if ref() is not None]
    print("left", len(alive), "of", len(references), file=sys.stderr)
    return 0 if len(alive) < len(references) / 2 else 9

def run(words):
    command = program.cli
    for word in words:
        command = command.get_command(None, word)
    command.callback = works_on
    command.params = []
    sys.argv[1:] = words
    program.main()

for words in sys.argv[1:]:
    pid = os.fork()  # each in a process that has imported nothing of any command yet
    if not pid:
        run(words.split())
    if os.waitpid(pid, 0)[1]:
        print(words)
"""


def leaf_commands(group: click.Group, path: tuple[str, ...] = ()) -> list[str]:
    commands = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            commands += leaf_commands(command, (*path, name))
        else:
            commands.append(" ".join((*path, name)))
    return commands


def test_all_commands_are_looked_at() -> None:
    assert isinstance(cli, LazyGroup)
    assert {"run", "verify-resume", "data pack", "data push", "data pull"} <= set(leaf_commands(cli))


def test_a_command_that_runs_on_collects_its_cycles() -> None:
    commands = leaf_commands(cli)
    result = subprocess.run([sys.executable, "-c", PROGRAM, *commands], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert result.stderr.count("left ") == len(commands)
