"""Secrets in the source folder: none is sent unless the job includes them."""

from __future__ import annotations

import json
import pwd
import re
from pathlib import Path

import pytest

from smlaunch.discovery.local_files import list_local_files
from smlaunch.errors import JobError
from smlaunch.runs.source_archive import pack_source
from smlaunch.secrets.file_contents import find_secret, is_public_material
from smlaunch.secrets.file_names import EXAMPLE_FILE_NAMES, SECRET_PATTERNS, match_secret_name
from tests.runs.test_source import tree

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEAs7Zx" * 12 + "\n-----END RSA PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n" + "MIIDdzCCAl+gAwIBAgIE" * 12 + "\n-----END CERTIFICATE-----\n"
AWS = "key_id = AKIA2OGYBAH6QGPTLSNQ\naccess_key = u2S7pK0cVmN9qL3xT8bR1yE5wH6jF4dZ0aGsQeXi\n"

SIXTEEN = (
    *(
        ".ssh/id_ed25519",
        ".ssh/config",
        ".aws/credentials",
        ".netrc",
        ".git-credentials",
        ".npmrc",
        ".pypirc",
    ),
    *(".docker/config.json", ".kube/config", ".env.local", ".env.production", "certs/server.pem"),
    *("infra/terraform.tfstate", ".bash_history", "service-account.json", "deploy.txt"),
)


def test_secrets_are_excluded_with_one_warning(tmp_path: Path) -> None:
    root = tree(tmp_path, {"train.py": "", **dict.fromkeys(SIXTEEN, KEY)})
    source = pack_source(root)
    assert source.files == ("train.py",)
    (note,) = source.warnings
    for name in SIXTEEN:
        folder = name.split("/")[0] + "/"
        assert name in note or folder in note, name
    assert "--include-secrets" in note
    assert "include_secrets: true" in note


def test_include_secrets_sends_them_all(tmp_path: Path) -> None:
    root = tree(tmp_path, {"train.py": "", **dict.fromkeys((*SIXTEEN, ".env", ".envs/x"), KEY)})
    source = pack_source(root, include_secrets=True)
    assert set(source.files) == {"train.py", ".env", ".envs/x", *SIXTEEN}
    assert source.warnings == ()


@pytest.mark.parametrize(
    "name",
    [
        "ID_RSA",
        ".env~",
        "id_rsa.bak",
        "x/.netrc.old",
        "deep/in/the/Tree/.NETRC",
        ".Env.Local",
        "a/.AWS/config",
        "K.PEM",
    ],
)
def test_names_count_in_any_case_and_in_any_folder(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path, {"train.py": "", name: "x"})
    assert pack_source(root).files == ("train.py",)


@pytest.mark.parametrize(
    "name",
    [
        *("tokenizer.json", "keys.py", "keyboard.py", "secrets.py", "credentials.py", "secrets/__init__.py"),
        *("credentials/store.py", "environment.py", "config.json", "history.csv", "id_rsa.pub", "shadow.py"),
        *(
            ".gitignore",
            "model.safetensors",
            "gym.envs.txt",
            "monkey.txt",
            "donkey",
            *sorted(EXAMPLE_FILE_NAMES),
        ),
    ],
)
def test_names_of_code_and_of_examples_are_none(tmp_path: Path, name: str) -> None:
    assert name in pack_source(tree(tmp_path, {name: ""})).files


def test_the_page_lists_every_pattern() -> None:
    page = (Path(__file__).parents[2] / "docs" / "source.md").read_text()
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("|")]
    for pattern in SECRET_PATTERNS:
        check = "" if pattern.content_check is None else " ".join(f"{pattern.content_check.__doc__}".split())
        content = re.sub("^Return whether the content (holds|is) ", "", check).rstrip(".")
        (row,) = (row for row in rows if f"`{pattern.pattern}`" in row[1])
        assert [row[0].strip(), row[2].strip()] == [pattern.kind, content], pattern.pattern
    missing = [pattern.pattern for pattern in SECRET_PATTERNS if f"`{pattern.pattern}`" not in page]
    assert missing == []
    documented_patterns = set(
        re.findall(r"`([^` ]+)`", page[page.index("## Names") : page.index("## Contents")])
    )
    assert documented_patterns - EXAMPLE_FILE_NAMES - {pattern.pattern for pattern in SECRET_PATTERNS} == {
        "folder/name"
    }


@pytest.mark.parametrize("name", [".env copy", ".env (1)", ".env1", ".env-prod", ".env_prod"])
def test_a_copy_of_variables_is_excluded_if_it_holds_a_secret(tmp_path: Path, name: str) -> None:
    root = tree(tmp_path, {"train.py": "", name: "HF_TOKEN=hf_" + "aB3d" * 9})
    assert pack_source(root).files == ("train.py",)
    (root / name).write_text("LR=0.1")
    assert name in pack_source(root).files


def test_every_pattern_finds_its_own_name() -> None:
    for sign in SECRET_PATTERNS:
        example = re.sub(r"\*", "x", sign.pattern)
        match = match_secret_name("some/" + example.rstrip("/"), is_folder=example.endswith("/"))
        assert match is not None, sign.pattern
        assert match.kind
        assert sign.source


@pytest.mark.parametrize(
    ("text", "description"),
    [
        (KEY, "a private key"),
        (KEY.replace("RSA ", ""), "a private key"),
        (KEY.replace("RSA PRIVATE KEY", "PGP PRIVATE KEY BLOCK"), "a private key"),
        (
            KEY.replace("-\nM", "-\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,0123456789ABCDEF\n\nM"),
            "a private key",
        ),
        ('{"private_key": ' + repr(KEY).replace("'", '"') + "}", "a private key"),
        (CERTIFICATE + KEY, "a private key"),
        (AWS, "an AWS access key"),
        (AWS.replace("AKIA", "ASIA"), "an AWS access key"),
        ("x" * 100_000 + "\n" + AWS, "an AWS access key"),
    ],
)
def test_keys_are_recognized_by_content(tmp_path: Path, text: str, description: str) -> None:
    root = tree(tmp_path, {"train.py": "", "notes.txt": text})
    source = pack_source(root)
    assert source.files == ("train.py",)
    assert f"notes.txt ({description})" in source.warnings[0]


SECRET_ID, SECRET = "AKIA2OGYBAH6QGPTLSNQ", "u2S7pK0cVmN9qL3xT8bR1yE5wH6jF4dZ0aGsQeXi"


@pytest.mark.parametrize(
    "text",
    [
        f"aws_access_key_id={SECRET_ID}\naws_secret_access_key={SECRET}\n",
        f"export AWS_ACCESS_KEY_ID={SECRET_ID}\nexport AWS_SECRET_ACCESS_KEY={SECRET}\n",
        f"ENV AWS_ACCESS_KEY_ID={SECRET_ID} AWS_SECRET_ACCESS_KEY={SECRET}\n",
        f"  - AWS_ACCESS_KEY_ID={SECRET_ID}\n  - AWS_SECRET_ACCESS_KEY={SECRET}\n",
        f"set AWS_ACCESS_KEY_ID={SECRET_ID}\r\nset AWS_SECRET_ACCESS_KEY={SECRET}\r\n",
        f"ID={SECRET_ID} SECRET={SECRET} aws s3 ls\n",
        f"ID={SECRET_ID.replace('AKIA', 'ASIA')}\nSECRET={SECRET}\n",
        json.dumps({"text": [f"AWS_ACCESS_KEY_ID={SECRET_ID}\n", f"AWS_SECRET_ACCESS_KEY={SECRET}\n"]}),
        json.dumps({"text": f"the key\n{SECRET_ID}\nand\t{SECRET}\n"}),
        f'{{"id": "{SECRET_ID}", "key": "{SECRET[:12]}\\/{SECRET[13:25]}\\u002b{SECRET[26:]}"}}',
        f"s3://{SECRET_ID}:{SECRET[:7]}%2F{SECRET[8:20]}%2B{SECRET[21:]}@bucket/key\n",
        f"\x1b[32m{SECRET_ID}\x1b[0m \x1b[1;31m{SECRET}\x1b[0m\n",
        json.dumps({"text": f"\x1b[32m{SECRET_ID}\x1b[0m \x1b[1;31m{SECRET}\x1b[0m\n"}),
        f"ID = '{SECRET_ID}'\n" + "#" * 3000 + f"\nKEY = '{SECRET}'\n",
    ],
)
def test_aws_keys_are_recognized_in_any_encoding(text: str) -> None:
    assert find_secret(text.encode()) == "an AWS access key"
    assert find_secret(text.encode("utf-16")) == "an AWS access key"


@pytest.mark.parametrize(
    "text",
    [
        CERTIFICATE,
        'PEM = re.compile("-----BEGIN RSA PRIVATE KEY-----")  # what we look for\n',
        "aws_access_key_id = AKIAIOSFODNN7EXAMPLE\nsecret = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n",
        "AKIA2OGYBAH6QGPTLSNQ without its secret, beside sha1 2fd4e1c67a2d28fced849ee1bb76e7391b93eb12\n",
        "the PRIVATE KEY of life\n",
    ],
)
def test_text_about_keys_is_no_key(text: str) -> None:
    assert find_secret(text.encode()) is None


def test_a_pem_of_certificates_alone_is_sent(tmp_path: Path) -> None:
    root = tree(tmp_path, {"ca.pem": CERTIFICATE * 3, "both.pem": CERTIFICATE + KEY, "der.pem": "0\x82\x04"})
    assert pack_source(root).files == ("ca.pem",)
    assert not is_public_material(b"")


ORDINARY = (
    *(
        "cola_rsa",
        "x_rsa",
        "challenge_rsa",
        "data_dsa",
        "model_ecdsa",
        "slides.key",
        "locales/en.key",
        "q.kdb",
    ),
    *("model.kdb", "service_account_clusters.json", "client_secretary.json", "auth.json"),
    *("config/secret.yaml", "credentials.csv", "train.env", "experiments/base.env", "conda.env", ".env.py"),
    "vocab.keystore",
)


@pytest.mark.parametrize(
    "content",
    ["", "x=1\n", '{"a": 1, "max_tokens": 512}', "hello: Hallo\nname: Ann\n", "the cat sat\non the mat\n"],
)
def test_an_ordinary_file_is_sent_under_a_name_that_secrets_have_too(tmp_path: Path, content: str) -> None:
    source = pack_source(tree(tmp_path, dict.fromkeys(ORDINARY, content)))
    assert set(source.files) == set(ORDINARY)
    assert source.warnings == ()
    excluded: list[str] = []
    assert [file.relative_path for file in list_local_files(tmp_path, excluded)] == sorted(ORDINARY)
    assert excluded == []


def test_an_archive_is_no_key(tmp_path: Path) -> None:
    names = {"model_ecdsa", "slides.key", "q.kdb"}
    for name in names:
        (tmp_path / name).write_bytes(b"PK\x03\x04\x14\0\0\0" + bytes(range(256)))
    assert set(pack_source(tmp_path).files) == names


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, KEY) for name in ORDINARY if not name.endswith(".kdb")),
        ("deploy_rsa", "PuTTY-User-Key-File-2: ssh-rsa\nEncryption: none\n"),
        ("deploy_rsa", "MIIEpAIBAAKCAQEAs7ZxMIIEpAIBAAKCAQEAs7Zx\n" * 8),
        ("tls.key", "Zm9vYmFyYmF6cXV4Zm9vYmFy\n"),
        ("tls.key", b"\x00\x01\xfe\xff" * 8),
        ("tls.key", b"0\x82\x01\x00" + b"\x02" * 256),
        ("ta.key", "-----BEGIN OpenVPN Static key V1-----\n" + "0123456789abcdef" * 2 + "\n"),
        ("app.keystore", b"\xfe\xed\xfe\xed\0\0\0\x02"),
        ("all.kdb", b"\x03\xd9\xa2\x9ae\xfbK\xb5"),
        ("prod.env", "LR=0.1\nDB_PASSWORD=hunter2\n"),
        ("prod.env", "DATABASE_URL=postgres://me:hunter2@db/x\n"),
        ("prod.env", "WANDB=0123456789abcdef0123456789abcdef01234567\n"),
        ("auth.json", '{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6aHVudGVyMg=="}}}'),
        ("auth.json", '{"tokens": {"access_token": "abc"}}'),
        ("client_secret_1.json", '{"installed": {"client_id": "1.x", "client_secret": "GOCSPX-abc"}}'),
        ("service_account.json", '{"type": "service_account", "private_key": "abc"}'),
        ("secret.yaml", "kind: Secret\ndata:\n  db: aHVudGVyMg==\n"),
        ("secret.yaml", "api_key: abc\n"),
        ("credentials.csv", "User name,Password\nann,hunter2\n"),
        (".env.py", 'API_TOKEN = "abc"\n'),
    ],
)
def test_ambiguous_names_are_excluded_with_a_secret_inside(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    root = tree(tmp_path, {"train.py": "", name: ""})
    (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert pack_source(root).files == ("train.py",)
    excluded: list[str] = []
    assert [file.relative_path for file in list_local_files(root, excluded)] == ["train.py"]
    assert excluded == [name]


def test_a_smlaunchignore_line_includes_a_secret_by_name(tmp_path: Path) -> None:
    files = dict.fromkeys((".env", "a/.env", "a/.netrc", ".aws/config", "src/id_rsa", "b/notes.txt"), KEY)
    root = tree(tmp_path, files)

    def sent_files(*lines: str, file: str = ".smlaunchignore") -> set[str]:
        (root / file).write_text("\n".join(lines))
        names = set(pack_source(root).files) - {file}
        (root / file).unlink()
        return names

    assert sent_files("!.env") == {".env", "a/.env"}
    assert sent_files("!/.env") == {".env"}
    assert sent_files("!a/.net*") == {"a/.netrc"}
    assert sent_files("!.aws/") == {".aws/config"}
    assert sent_files("!notes.txt") == {"b/notes.txt"}
    # None of these names a file: all of them are in use to bring a folder of code back.
    assert sent_files("!*") == sent_files("!**") == sent_files("!src/") == sent_files("!a/*") == set()
    assert sent_files("!.env", ".env") == set()
    # What git keeps is not what is to be sent to a bucket.
    assert sent_files("!.env", file=".gitignore") == set()


def test_a_links_name_applies_to_its_target(tmp_path: Path) -> None:
    root = tree(tmp_path, {"train.py": "", "conf/prod": "x", "cloud/config": "y", "ca.txt": CERTIFICATE})
    (root / ".env").symlink_to("conf/prod")
    (root / ".aws").symlink_to("cloud")
    (root / "ca.pem").symlink_to("ca.txt")
    source = pack_source(root)
    assert source.files == ("ca.pem", "ca.txt", "train.py")
    for name in (".env", ".aws", "conf/prod", "cloud/config"):
        assert name in source.warnings[0]


def test_ignored_files_give_no_warning(tmp_path: Path) -> None:
    assert (
        pack_source(tree(tmp_path, {".gitignore": ".env\n*.pem\n", ".env": "x", "a.pem": KEY})).warnings == ()
    )


def test_a_long_list_is_cut(tmp_path: Path) -> None:
    note = pack_source(tree(tmp_path, {f"{number:03}.pem": KEY for number in range(50)})).warnings[0]
    assert "019.pem" in note
    assert "and 30 more" in note
    assert "020.pem" not in note


# ---- folders that are never sent -------------------------------------------------------------------------


def refusal_text(root: Path) -> str:
    with pytest.raises(JobError) as caught:
        pack_source(root)
    return str(caught.value)


def test_home_folders_and_their_parents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tree(tmp_path / "users" / "ann", {"train.py": "", "work/train.py": ""})
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "link").symlink_to(home)
    for name in (home, tmp_path / "link", home / "work" / ".."):
        assert re.search(
            r"source: .* is a home folder, .*; keep the script in a folder of its own", refusal_text(name)
        )
    assert "holds your home folder" in refusal_text(home.parent)
    assert "is the root of this machine's files" in refusal_text(Path("/"))
    assert pack_source(home / "work").files == ("train.py",)


def test_the_home_of_the_folders_owner_counts_whatever_the_variable_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.delenv("SMLAUNCH_HOME", raising=False)
    home = Path(pwd.getpwuid(0).pw_dir)
    assert "is a home folder" in refusal_text(home)


def test_own_state_is_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"jobs.sqlite": "", "s3/bucket/run/source.tar.gz": "x", "owners/a.lock": ""}
    root = tree(
        tmp_path / "work", {"train.py": "", **{f"state/{name}": text for name, text in state.items()}}
    )
    tree(root / "fresh", {"anything": ""})
    assert pack_source(root).files == ("fresh/anything", "train.py")  # known by what is in it
    monkeypatch.setenv("SMLAUNCH_HOME", str(root / "fresh"))
    assert pack_source(root).files == ("train.py",)  # and by its name, before anything is
    monkeypatch.setenv("SMLAUNCH_HOME", str(root))
    assert "SMLAUNCH_HOME" in refusal_text(root)
