"""``smlaunch completion``."""

from __future__ import annotations

import click


@click.command(short_help="Print the shell's completion script.")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print the completion script for a shell.

    \b
    bash:  smlaunch completion bash > ~/.local/share/bash-completion/completions/smlaunch
    zsh:   smlaunch completion zsh > a folder of $fpath, as _smlaunch
    fish:  smlaunch completion fish > ~/.config/fish/completions/smlaunch.fish
    """
    from click.shell_completion import get_completion_class

    from smlaunch.cli.main import COMPLETION_VARIABLE, cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this version of click cannot complete {shell}")
    click.echo(kind(cli, {}, "smlaunch", COMPLETION_VARIABLE).source())
    return 0
