"""Every command in README.md and docs/ names commands and options that exist."""

from __future__ import annotations

import click
import pytest

from smlaunch.cli.main import cli
from tests.docs.commands import PAGES, DocCommand, block_commands, inline_commands
from tests.tables import table

COMMANDS = [command for page in PAGES for command in (*block_commands(page), *inline_commands(page))]


def parse_problem(doc: DocCommand) -> str:
    """Returns what click says about the command, or an empty string."""
    words = [word for word in doc.words[1:] if word not in ("...", "[...]")]
    group: click.Command = cli
    context = click.Context(group, info_name="smlaunch")
    while isinstance(group, click.Group):
        if not words or words[0].startswith("["):
            return ""
        name = words.pop(0)
        command = group.get_command(context, name)
        if command is None:
            return f"there is no command {name!r}"
        group, context = command, click.Context(command, parent=context, info_name=name)
    if not doc.is_example:
        known = {
            option for parameter in group.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        named = {word.strip("[]").partition("=")[0] for word in words if word.strip("[]").startswith("--")}
        return ", ".join(sorted(named - known - {"--"}))
    try:
        group.make_context(context.info_name, list(words), parent=context.parent)
    except click.exceptions.Exit:
        return ""
    except click.MissingParameter:
        return ""  # the text names the command, not a whole line to type
    except click.ClickException as error:
        message = error.format_message()
        return "" if message.endswith("does not exist.") else message
    return ""


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 80


@table("command", COMMANDS)
def test_every_command_parses(command: DocCommand) -> None:
    problem = parse_problem(command)
    assert not problem, f"{command.page}:{command.line}: {' '.join(command.words)}: {problem}"


@pytest.mark.parametrize("words", [("smlaunch", "runn", "x.py"), ("smlaunch", "show", "RUN", "--no-such")])
def test_a_wrong_command_is_reported(words: tuple[str, ...]) -> None:
    assert parse_problem(DocCommand("page.md", 1, words))
