"""What to type instead: commands that other tools have, misspelled commands, misspelled options."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from smlaunch.secrets.masking import mask_arguments

_COMMAND_OF_OTHER_NAMES: Mapping[str, tuple[str, str]] = {
    "launch": ("run", "launches a job"),
    "submit": ("run", "launches a job (with --detach it returns at once)"),
    "start": ("run", "launches a job"),
    "train": ("run", "launches a job"),
    "status": ("show", "shows the state of a run; `smlaunch local status` that of the local endpoint"),
    "describe": ("show", "shows the state of a run"),
    "cancel": ("stop", "stops a run"),
    "kill": ("stop", "stops a run"),
    "list": ("ls", "lists runs"),
    "ps": ("ls", "lists runs"),
    "log": ("logs", "prints a run's log"),
    "attach": ("logs -f", "follows a run"),
    "exec": ("shell", "opens a shell in a running local host"),
    "ssh": ("shell", "opens a shell in a running local host"),
    "delete": ("stop", "stops a run; no command deletes its jobs, logs or files, which outlive the run"),
    "rm": ("stop", "stops a run; no command deletes its jobs, logs or files, which outlive the run"),
    "version": ("--version", "prints the version"),
    "help": ("--help", "lists the commands"),
}
"""By the name that other tools have for it: the command of smlaunch, and what it does."""

_SCRIPT_SUFFIXES = (".py", ".sh", ".yaml", ".yml", ".ipynb")


def describe_unknown_command(
    name: str, arguments: Sequence[str], known: Iterable[str], command_path: str
) -> str:
    """Return the error for a command that does not exist, with the command line to type instead.
    ``arguments``: those after the name. ``command_path``: ``smlaunch``, or the group of commands."""
    from smlaunch.text.did_you_mean import nearest_match

    text = f"there is no command {name!r}"
    if command_path == "smlaunch":
        if name.endswith(_SCRIPT_SUFFIXES):
            return f"{text}; to run it: `{_command_line('smlaunch run', (name, *arguments))}`"
        if name in _COMMAND_OF_OTHER_NAMES:
            command, effect = _COMMAND_OF_OTHER_NAMES[name]
            given = () if command.startswith("--") else arguments
            return f"{text}; `{_command_line(f'smlaunch {command}', given)}` {effect}"
    match = nearest_match(name, known)
    if match is not None:
        return f"{text}, did you mean {match!r}? `{_command_line(f'{command_path} {match}', arguments)}`"
    return f"{text}; commands: {', '.join(known)}"


def describe_unknown_option(
    option: str, arguments: Sequence[str], known: Iterable[str], command_path: str, takes_script: bool
) -> str:
    """Return the error for an option that does not exist, with what to type instead. ``arguments``: all of
    the command, up to a ``--``. ``takes_script``: arguments after ``--`` go to the user's script."""
    from smlaunch.text.did_you_mean import nearest_match

    text = f"there is no option {option}"
    with_hyphens = "--" + option[2:].replace("_", "-").lower()
    known_options = list(known)
    if with_hyphens in known_options:
        return f"{text}; options have hyphens and small letters: {with_hyphens}"
    match = nearest_match(option, known_options, _OPTION_SIMILARITY)
    suggestion = f", did you mean {match}?" if match else ""
    if takes_script and match is None:
        own_arguments, script_arguments = _split_off_options(arguments, known_options)
        line = _command_line(command_path, (*own_arguments, "--", *script_arguments))
        return f"{text}; options of the script go after a double dash: `{line}`"
    if takes_script:
        return f"{text}{suggestion} Options of the script go after a double dash"
    return f"{text}{suggestion}" if suggestion else f"{text}; options: {', '.join(sorted(known_options))}"


_OPTION_SIMILARITY = 0.8
"""``--epochs`` is not meant as ``--detach``, though they are similar."""


def _split_off_options(arguments: Sequence[str], known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those that stay, and the unknown long options with their values."""
    own_arguments: list[str] = []
    script_arguments: list[str] = []
    current = own_arguments
    for argument in arguments:
        if argument.startswith("-"):
            name, equals, _ = argument.partition("=")
            is_unknown = name.startswith("--") and name not in known
            (script_arguments if is_unknown else own_arguments).append(argument)
            current = script_arguments if is_unknown and not equals else own_arguments
        else:
            current.append(argument)
            current = own_arguments
    return own_arguments, script_arguments


_PAIR_OPTIONS = ("--hp", "--env", "--option", "--secret")


def describe_extra_argument(arguments: Sequence[str], command_path: str) -> str:
    """Return the error for a second argument that is no option, with what to type instead. ``arguments``: all
    of the command, up to a ``--``."""
    for option, key, value in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if option in _PAIR_OPTIONS and "=" not in key and not value.startswith("-"):
            return (
                f"{option} takes K=V: `{_command_line('', (option, f'{key}={value}')).strip()}`, not {key!r}"
            )
    return (
        "one script or job file is run, and a further argument was given that belongs to no option; "
        f"arguments of the script go after a double dash: `{command_path} train.py -- ARGUMENTS`"
    )


def _command_line(command: str, arguments: Sequence[str]) -> str:
    """Return a command line as text, secrets masked."""
    masked = (str(argument) for argument in mask_arguments(arguments))
    return " ".join([command, *map(shlex.quote, masked)])
