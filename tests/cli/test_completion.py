"""What the Tab key does in a real bash on a terminal."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.cli.terminal import Terminal

CASES = [
    ("smlaunch sho", "smlaunch show "),
    ("smlaunch run train.py --strategy deeps", "--strategy deepspeed "),
    ("smlaunch run train.py --instance-type ml.g5.12", "--instance-type ml.g5.12xlarge "),
    ("smlaunch run train.py --region ap-southeast-5", "--region ap-southeast-5 "),
    ("smlaunch run train.py --profile tea", "--profile team-a "),
    ("smlaunch show --local some", "show --local some-run "),
    ("smlaunch logs some", "logs some-run "),
    ("smlaunch local sta", "start"),
    ("smlaunch run trai", "smlaunch run train.py "),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_tab_key(shell: Shell, tmp_path: Path) -> None:
    assert shell("run", "train.py", "--local", "--name", "some-run").code == 0
    config = tmp_path / "aws-config"
    config.write_text("[profile team-a]\nregion = eu-west-1\n")
    launcher = tmp_path / "bin" / "smlaunch"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m smlaunch.cli.main "$@"\n')
    launcher.chmod(0o755)
    environment = {
        **shell.environment,
        "AWS_CONFIG_FILE": str(config),
        "PATH": f"{launcher.parent}:{shell.environment['PATH']}",
        "PS1": "> ",
    }
    terminal = Terminal(["bash", "--norc", "-i"], environment, shell.folder, columns=120)
    terminal.type("eval \"$(smlaunch completion bash)\"; echo 're'ady\n")
    terminal.wait_for("\nready\n")
    for typed, completed in CASES:
        terminal.type(f"{typed}\t{chr(9) if completed == 'start' else ''}")
        terminal.wait_for(completed)
        terminal.type("\x15\x0b")  # clear the line
    terminal.type("\nexit 3\n")
    assert terminal.wait_for_end() == 3
