"""Text of jobs and runs as HTML: escaped, secrets masked."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from smlaunch.secrets.masking import mask_text
from smlaunch.text.format import escape_unprintable


def escape_html(text: str, keep_lines: bool = False) -> str:
    """Escape text, mask secrets and escape unprintable characters. ``keep_lines``: keep line breaks."""
    masked = mask_text(text)
    masked_lines = masked.split("\n") if keep_lines else [masked]
    return escape("\n".join(escape_unprintable(masked_line) for masked_line in masked_lines))


def key_value_table(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a table of labels and values, which are escaped."""
    rows = (f"<tr><th>{escape_html(label)}</th><td>{escape_html(value)}</td></tr>" for label, value in pairs)
    return f"<table>{''.join(rows)}</table>"
