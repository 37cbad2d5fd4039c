"""Messages to the user: control characters escaped, secrets masked."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

from smlaunch.secrets.masking import mask_text
from smlaunch.text.format import wrap_words
from smlaunch.text.terminal import terminal_width

if TYPE_CHECKING:
    from smlaunch.aws.interfaces import CallError
    from smlaunch.data.transfer_progress import TransferProgress


_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def escape_controls(text: str) -> str:
    """Escape control characters (C0 and C1, except newline and tab), so that a terminal does not act on
    the text of a job."""
    return text.translate(_CONTROL)


def is_terminal(stream: IO[str]) -> bool:
    """Whether a stream is a terminal on which text can be drawn again."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: IO[str]) -> bool:
    """Whether text for a stream is coloured: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def style_for(stream: IO[str], text: str, **style: Any) -> str:
    """Return the text in a style (keywords of ``click.style``) where the stream takes colours."""
    return click.style(text, **style) if style and has_colours(stream) else text


def echo(text: str, *, err: bool = False, file: IO[str] | None = None, **style: Any) -> None:
    """Print a text with control characters escaped. ``style``: keywords of ``click.style``."""
    stream = file or (sys.stderr if err else sys.stdout)
    click.echo(style_for(stream, escape_controls(text), **style), file=stream, color=has_colours(stream))


def print_message(text: str, *, indent: str = "", **style: Any) -> None:
    """Print a message to stderr, secrets masked, wrapped at words on a terminal. ``indent``: in front of all
    lines but the first."""
    print_labeled("", text, indent=indent, text_style=style)


def print_retry(error: CallError, seconds: float) -> None:
    """Say that a call has failed and is made again after so many seconds."""
    click.echo(f"{error.operation}: {error.message}; retrying in {seconds:.0f} s", err=True)


def print_labeled(
    label: str, text: str, *, indent: str = "", text_style: Mapping[str, Any] | None = None, **style: Any
) -> None:
    """Print a message to stderr after a styled label: secrets masked, wrapped at words on a terminal.
    ``indent``: in front of all lines but the first."""
    stream = sys.stderr
    lines = wrap_for(stream, label + escape_controls(mask_text(text)), indent)
    lines[0] = lines[0][len(label) :]
    styled_lines = [style_for(stream, line, **(text_style or {})) for line in lines]
    click.echo(
        style_for(stream, label, **style) + "\n".join(styled_lines), file=stream, color=has_colours(stream)
    )


def wrap_for(stream: IO[str], text: str, indent: str = "") -> list[str]:
    """Return the lines of a text, wrapped at words to the width of the stream if that is a terminal."""
    width = terminal_width(stream)
    if width is None:
        return [text]
    return [line for paragraph in text.split("\n") for line in wrap_words(paragraph, width, indent)]


def upload_display() -> Callable[[TransferProgress], None]:
    """Return a callback that shows the progress of an upload. The display is imported on first use."""
    displays: list[Callable[[TransferProgress], None]] = []

    def show_progress(progress: TransferProgress) -> None:
        if not displays:
            from smlaunch.cli.transfer_display import TransferDisplay

            displays.append(TransferDisplay("uploading", "uploaded").show)
        displays[0](progress)

    return show_progress
