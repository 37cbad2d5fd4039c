"""Secrets and the command line: what is sent, what is shown."""

from __future__ import annotations

import json
import tarfile
import traceback
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.runs.plan_job import plan
from tests.cli.conftest import Shell
from tests.runs.fakes import ROLE, fake_target

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEAs7Zx" * 12 + "\n-----END RSA PRIVATE KEY-----\n"


def archives(home: Path) -> list[list[str]]:
    """Returns the names in every source archive that the endpoint has."""
    names_by_archive = []
    for path in sorted(home.rglob("*.tar.gz")):
        if "source" in str(path.relative_to(home)):
            with tarfile.open(fileobj=BytesIO(path.read_bytes())) as archive:
                names_by_archive.append(sorted(archive.getnames()))
    return names_by_archive


def test_a_run_leaves_secrets_at_home_unless_they_are_asked_for(shell: Shell) -> None:
    (shell.folder / ".env").write_text("PASSWORD=hunter2")
    (shell.folder / "deploy.key").write_text(KEY)
    home = Path(shell.environment["SMLAUNCH_HOME"])
    result = shell("run", "train.py", "--local", "--strategy", "custom")
    assert result.code == 0, result.err
    assert result.err.count("deploy.key") == 1
    assert archives(home) == [["train.py"]]
    result = shell("run", "train.py", "--local", "--strategy", "custom", "--include-secrets")
    assert result.code == 0, result.err
    assert "deploy.key" not in result.err
    assert [".env", "deploy.key", "train.py"] in archives(home)


def test_the_state_in_the_source_folder_is_in_no_archive(shell: Shell) -> None:
    home = shell.folder / "state"
    shell.environment["SMLAUNCH_HOME"] = str(home)
    for _ in range(2):
        result = shell("run", "train.py", "--local", "--strategy", "custom", "--input", "train=.")
        assert result.code == 0, result.err
    assert archives(home) == [["train.py"]]
    data = [path.name for path in home.rglob("*") if "/inputs/" in str(path) and path.is_file()]
    assert not [name for name in data if "sqlite" in name]


def test_a_home_folder_is_refused_in_every_way_of_naming_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shell.folder
    shell.environment["HOME"] = str(home)
    (home / "job.yaml").write_text("entry: train.py\n")
    (home / "work").mkdir()
    (home / "work" / "train.py").write_text("")
    (home / "work" / "job.yaml").write_text("entry: train.py\nsource: ..\n")
    for arguments in (
        ("train.py",),
        ("~/train.py",),
        ("job.yaml",),
        ("work/train.py", "--source", "."),
        ("work/train.py", "--source", ".."),
        ("work/job.yaml",),
    ):
        for command in ("run", "plan"):
            result = shell(command, *arguments, "--local")
            assert result.code == 2, result
            assert "home folder" in result.err
    assert shell("plan", "work/train.py", "--local").code == 0
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(JobError, match="is a home folder"):
        plan(Job(entry=home / "train.py", role=ROLE), fake_target())


def test_an_entry_that_holds_a_key_is_refused_with_the_ways_out(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(f'KEY = """{KEY}"""\n')
    result = shell("plan", "train.py", "--local")
    assert result.code == 2
    assert "train.py may hold secrets (a private key); --include-secrets" in result.err
    assert shell("plan", "train.py", "--local", "--include-secrets").code == 0
    (shell.folder / "job.yaml").write_text("entry: train.py\ninclude_secrets: true\n")
    assert shell("plan", "job.yaml", "--local").code == 0


def test_the_warning_is_in_the_plan_and_its_document(shell: Shell) -> None:
    (shell.folder / ".netrc").write_text("machine x password y")
    assert ".netrc (passwords)" in shell("plan", "train.py", "--local").out
    document = json.loads(shell("plan", "train.py", "--local", "--json").out)
    assert [warning for warning in document["warnings"] if ".netrc" in warning]


# ---- what is shown ---------------------------------------------------------------------------------------

HF = "hf_" + "aBcD" * 9
HIDDEN = ("hunter2", "s3same", "open5", "pl4in", HF, "w0rds", "t4g")
VISIBLE_VALUES = ("512", "tokenizer.json", "me", "0.25")

JOB = f"""\
entry: train.py
strategy: custom
environment:
  {{DB_PASSWORD: hunter2, NOTE: {HF}, DATABASE: "postgres://me:pl4in@db/x", TOKENIZER: tokenizer.json}}
hyperparameters: {{api_key: s3same, max_tokens: 512, lr: 0.25, config: {{client_secret: open5}}}}
args: [--hub-token, w0rds, fine]
tags: {{ci_token: t4g}}
"""


def find_leaks(text: str) -> list[str]:
    return [secret for secret in HIDDEN if secret in text]


def test_nothing_that_is_shown_holds_a_secret(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text(JOB)
    for arguments in (
        ("run", "job.yaml", "--local", "--dry-run"),
        ("plan", "job.yaml", "--local"),
        ("plan", "job.yaml", "--local", "--json"),
    ):
        result = shell(*arguments)
        assert result.code == 0, result.err
        assert find_leaks(result.out + result.err) == [], arguments
        assert [value for value in VISIBLE_VALUES if value not in result.out] == [], arguments
        assert "****" in result.out
    request = json.loads(shell("run", "job.yaml", "--local", "--dry-run").out)
    assert request["Environment"]["DATABASE"] == "postgres://me:****@db/x"
    assert request["HyperParameters"]["max_tokens"] == "512"


def test_a_plan_in_python_shows_no_secret_and_sends_them_all(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text(JOB)
    job = Job.from_file(shell.folder / "job.yaml").with_changes(role=ROLE)
    job_plan = plan(job, fake_target())
    assert (
        find_leaks(
            str(job_plan)
            + job_plan._repr_html_()
            + repr(job_plan)
            + json.dumps(job_plan.to_dict())
            + repr(job)
            + str(job)
        )
        == []
    )
    sent_text = json.dumps(job_plan.requests) + "".join(upload.content or "" for upload in job_plan.uploads)
    assert find_leaks(sent_text) == list(HIDDEN)
    assert find_leaks(job.to_yaml()) == list(HIDDEN)


def test_the_script_gets_the_true_values(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(
        "import os, sys\nprint('got', os.environ['DB_PASSWORD'], os.environ['NOTE'], *sys.argv[1:])\n"
    )
    (shell.folder / "job.yaml").write_text(JOB)
    result = shell("run", "job.yaml", "--local")
    assert result.code == 0, result.err
    assert find_leaks(result.err) == []
    script_line = next(line for line in result.out.splitlines() if line.startswith("got"))
    assert [
        secret for secret in ("hunter2", HF, "s3same", "w0rds", "open5") if secret not in script_line
    ] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("--env", "DB_PASSWORD:hunter2"),
        ("--env", f"NOTE {HF}"),
        ("--hp", "api-key hunter2"),
        ("--env", "DB_PASSWORD=" + "hunter2" * 100),
        ("--env", "DB-PASSWORD=hunter2"),
        ("--output", "https://me:hunter2@host/"),
        ("--image", HF, "--hosts", "0"),
    ],
)
def test_mistakes_are_told_without_the_secret(shell: Shell, arguments: tuple[str, ...]) -> None:
    result = shell("run", "train.py", "--local", *arguments)
    assert result.code == 2
    assert find_leaks(result.out + result.err) == []
    assert result.err


def test_a_mistake_in_a_job_file_is_told_without_the_secret(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text("entry: train.py\nenvironment: {DB_PASSWORD: 12.75, LR: 0.5}\n")
    result = shell("plan", "job.yaml", "--local")
    assert result.code == 2
    assert "environment.DB_PASSWORD: text is needed, not" in result.err
    assert "12.75" not in result.err
    assert "environment.LR: text is needed, not 0.5" in result.err


@pytest.mark.parametrize(
    "line",
    [
        "environment: [{name: DB_PASSWORD, value: VALUE}]",  # as in Kubernetes and ECS
        "environment: [{DB_PASSWORD: VALUE}]",
        "environment: [DB_PASSWORD VALUE]",
        "environment: {DB_PASSWORD=VALUE}",
        "environment: {'DB_PASSWORD:VALUE': 1}",
        "environment: {MISSPELT_PASWORD: [VALUE]}",
        "environment: {MISSPELT_PASWORD: {value: VALUE}}",
        "environment: {DB_PASSWORD: *VALUE}",
        "environment: {DB_PASSWORD: !VALUE x}",
        "environment:\n  DB_PASSWORD VALUE",
        "secrets: [{HF_TOKEN: VALUE}]",
        "secrets: [{name: HF_TOKEN, value: VALUE}]",
        "secrets: VALUE",
        "hyperparameters: [{api_token: VALUE}]",
        "segments: [{hyperparameters: [{api_token: VALUE}]}]",
        "options: [{api_token: VALUE}]",
        "args: {--token: VALUE}",
        "tags: [{Key: password, Value: VALUE}]",
        "tags: {password: 'VALUE;'}",
        "request: {Environment: [{Name: DB_PASSWORD, Value: VALUE}]}",
        "request: {Environment: {DB_PASSWORD: [VALUE]}}",
        "request: {Environment: {DB_PASSWORD: {Value: VALUE}}}",
        "request: {Environment: {DB_PASSWORD: 12345678901}}",
        "request: {Environment: VALUE}",
        "request: {HyperParameters: {api_token: [VALUE]}}",
        "request: {Tags: {password: VALUE}}",
        "request: {Tags: [{Key: password, Value: [VALUE]}]}",
        "request: {Tags: [{Key: password, Value: 'VALUE;'}]}",
        "VALUE",
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_secret_in_a_wrong_shape_is_not_quoted(shell: Shell, line: str, options: tuple[str, ...]) -> None:
    value = "zq9Xk2Wp7Lm4Tn8Rv5"
    entry = "" if line == "VALUE" else "entry: train.py\n"
    (shell.folder / "job.yaml").write_text(entry + line.replace("VALUE", value) + "\n")
    result = shell("plan", "job.yaml", "--local", *options)
    assert result.code == 2 and "error" in result.err
    for secret in (value, "12345678901"):
        assert secret not in result.out + result.err


@pytest.mark.parametrize("option", ["--secret", "--env", "--hp"])
def test_a_secret_without_its_name_is_not_quoted(shell: Shell, option: str) -> None:
    result = shell("plan", "train.py", "--local", option, "zq9Xk2Wp7Lm4Tn8Rv5", "--hp", "lr:0.1")
    assert result.code == 2
    assert "zq9Xk" not in result.out + result.err
    assert f"{option}: '****' is not KEY=VALUE" in result.err and "'lr:0.1'" in result.err


def test_an_export_refuses_secrets_of_the_environment_and_tells_of_others(endpoint_shell: Shell) -> None:
    (endpoint_shell.folder / "secrets").mkdir()
    (endpoint_shell.folder / "secrets" / "train.py").write_text("")
    (endpoint_shell.folder / "secrets" / "job.yaml").write_text(JOB)
    for kind in ("step-functions", "airflow", "pipeline"):
        refused = endpoint_shell("export", kind, "secrets/job.yaml", "--local", "--out", f"out-{kind}")
        assert refused.code == 2 and find_leaks(refused.err) == []
        for field in ("environment.DB_PASSWORD", "environment.NOTE", "environment.DATABASE"):
            assert f"{field}: it looks like a secret" in refused.err
        assert "TOKENIZER" not in refused.err and not (endpoint_shell.folder / f"out-{kind}").exists()
    others = "".join(
        line for line in JOB.splitlines(True) if "environment" not in line and "hunter2" not in line
    )
    (endpoint_shell.folder / "secrets" / "job.yaml").write_text(others)
    for kind in ("step-functions", "airflow", "pipeline"):
        result = endpoint_shell("export", kind, "secrets/job.yaml", "--local", "--out", f"out-{kind}")
        assert result.code == 0, result.err
        assert find_leaks(result.err) == []
        warning = next(
            line for line in result.err.splitlines() if "the export contains the values of" in line
        )
        for field in ("hyperparameters.api_key", "args", "tags.ci_token"):
            assert field in warning
        exported_text = "".join(
            path.read_text() for path in (endpoint_shell.folder / f"out-{kind}").iterdir()
        )
        assert "s3same" in exported_text


@pytest.mark.parametrize(
    ("script", "name", "content"),
    [
        ("print(open('configs/auth.json').read())\n", "configs/auth.json", '{"api_key": "abc"}'),
        ("exec(open('keys_fixture.py').read())\n", "keys_fixture.py", f"KEY = '''{KEY}'''\n"),
    ],
)
def test_a_run_that_fails_for_a_file_that_was_left_out_says_so(
    shell: Shell, script: str, name: str, content: str
) -> None:
    (shell.folder / "train.py").write_text(script)
    (shell.folder / name).parent.mkdir(exist_ok=True)
    (shell.folder / name).write_text(content)
    result = shell("run", "train.py", "--local", "--strategy", "custom", "--name", "lacks-one")
    assert result.code == 1
    sentence = f"{name} was not sent: it may hold secrets"
    assert sentence in result.err[result.err.index("failed: ") :]
    assert f"!{name} in .smlaunchignore" in result.err
    assert sentence in shell("show", "lacks-one", "--local").out
    assert json.loads(shell("show", "lacks-one", "--local", "--json").out)["hint"].startswith(sentence)


def test_a_module_that_was_left_out_as_a_secret_is_named_before_the_run(shell: Shell) -> None:
    (shell.folder / "train.py").write_text("import keys_fixture\n")
    (shell.folder / "keys_fixture.py").write_text(f"KEY = '''{KEY}'''\n")
    result = shell("run", "train.py", "--local", "--strategy", "custom")
    assert result.code == 2
    assert (
        "train.py:1 imports keys_fixture, and keys_fixture.py is not sent: it may hold secrets" in result.err
    )
    assert "!keys_fixture.py in .smlaunchignore" in result.err


def test_what_is_left_out_is_named_in_full_in_json(shell: Shell) -> None:
    names = sorted(f"{number:02}.pem" for number in range(30))
    for name in names:
        (shell.folder / name).write_text(KEY)
    (shell.folder / "data").mkdir()
    (shell.folder / "data" / "id_rsa").write_text(KEY)
    (shell.folder / "data" / "a.txt").write_text("x")
    arguments = ("plan", "train.py", "--local", "--strategy", "custom", "--input", "train=data")
    document = json.loads(shell(*arguments, "--json").out)
    rows = [(row["field"], row["file"]) for row in document["left_out"]]
    # An input is no part of the source, whose folder it is in.
    assert rows == [("inputs.train", "id_rsa"), *(("source", name) for name in names)]
    assert all("--include-secrets" in row["because"] for row in document["left_out"])
    assert "and 10 more (plan --json names all of them, in left_out)" in " ".join(
        shell(*arguments).out.split()
    )


def test_requirements_that_are_left_out_are_told_with_the_reason(shell: Shell) -> None:
    (shell.folder / "requirements.env").write_text("API_TOKEN=abc\n")
    result = shell("plan", "train.py", "--local", "--requirements", "requirements.env")
    assert result.code == 2
    assert "requirements: requirements.env may hold secrets (variables); --include-secrets" in result.err


@pytest.mark.parametrize(
    "wrong",
    [
        {"environment": "HF_TOKEN=ZZK2"},
        {"environment": ["HF_TOKEN=ZZK2"]},
        {"inputs": {"a": "https://u:ZZK10@h/x"}},
        {"inputs": {"a": "s3://AKIA2OGYBAH6QGPTLSNQ:ZZERRbcdefghijklmnopqrstuvwxyz@bucket/x"}},
    ],
)
def test_an_error_in_a_notebook_shows_no_secret(tmp_path: Path, wrong: dict[str, Any]) -> None:
    (tmp_path / "train.py").write_text("")
    with pytest.raises(JobError) as caught:
        plan(Job(entry=str(tmp_path / "train.py"), **wrong), fake_target())
    assert "ZZ" not in "".join(traceback.format_exception(caught.value))
    assert "ZZ" not in repr(caught.value)


def test_an_address_with_keys_in_it_shows_neither(shell: Shell) -> None:
    uri = "s3://AKIA2OGYBAH6QGPTLSNQ:ZZERRbcdefghijklmnopqrstuvwxyz123456789AB@bucket/x"
    result = shell("plan", "train.py", "--local", "--input", f"train={uri}")
    assert result.code == 2
    assert "ZZ" not in result.err + result.out
