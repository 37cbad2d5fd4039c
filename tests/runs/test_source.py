from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.errors import JobError
from smlaunch.runs import source_archive
from smlaunch.runs.source_archive import pack_source
from smlaunch.runs.source_tree import ALWAYS_EXCLUDED, IGNORE_FILES
from smlaunch.secrets.file_names import match_secret_name


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_same_files_give_the_same_bytes_whatever_their_times_and_owners(tmp_path: Path) -> None:
    files = {"train.py": "print(1)", "lib/a.py": "a = 1", "lib/b.py": "b = 2"}
    first = tree(tmp_path / "one", files)
    two = tree(tmp_path / "two", dict(reversed(files.items())))
    os.utime(two / "train.py", (1, 1))
    (two / "lib" / "a.py").chmod(0o600)
    assert pack_source(first).sha256 == pack_source(two).sha256
    assert pack_source(first).compressed() == pack_source(two).compressed()


def test_the_executable_bit_and_the_content_make_a_difference(tmp_path: Path) -> None:
    root = tree(tmp_path, {"run.sh": "echo"})
    hash_before = pack_source(root).sha256
    (root / "run.sh").chmod(0o755)
    executable = pack_source(root).sha256
    (root / "run.sh").write_text("echo 2")
    assert len({hash_before, executable, pack_source(root).sha256}) == 3


def test_a_notebook_is_sent_only_where_something_names_it(tmp_path: Path) -> None:
    root = tree(tmp_path, {"train.py": "", "a.ipynb": "{}", "lib/b.ipynb": "{}", "c.ipynb": "{}"})
    source = pack_source(root)
    assert source.files == ("train.py",)
    assert source.excluded_files.keys() == {"a.ipynb", "lib/b.ipynb", "c.ipynb"}
    assert source.explain_missing_file("lib/b.ipynb").endswith("or .smlaunchignore has a line !lib/b.ipynb")
    (root / ".smlaunchignore").write_text("!a.ipynb\n")
    papermill = ["papermill", "lib/b.ipynb", "--name=c"]
    assert pack_source(root, command=papermill).files == (
        ".smlaunchignore",
        "a.ipynb",
        "lib/b.ipynb",
        "train.py",
    )


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text(
            st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=20
        ).filter(
            lambda name: name not in (".", "..") and not name.endswith(".pyc") and len(name.encode()) < 200
        ),
        st.binary(max_size=200),
        max_size=5,
    )
)
def test_all_files_are_packed(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    root = tmp_path_factory.mktemp("source")
    for name, content in files.items():
        (root / name).write_bytes(content)
    if any(name in IGNORE_FILES for name in files):
        return
    expected = {name for name in files if name not in ALWAYS_EXCLUDED and match_secret_name(name) is None}
    with tarfile.open(fileobj=io.BytesIO(pack_source(root).compressed())) as archive:
        contents = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert contents == {name: files[name] for name in expected}


def test_ignore_files_are_read_as_git_reads_them(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            ".gitignore": "*.log\n/build\ndata/\n",
            "train.py": "",
            "run.log": "",
            "build/x": "",
            "lib/build/x": "",
            "data/big.bin": "",
            "lib/.gitignore": "!keep.log\nsecret.txt\n",
            "lib/keep.log": "",
            "lib/drop.log": "",
            "lib/secret.txt": "",
        },
    )
    assert set(pack_source(root).files) == {
        ".gitignore",
        "train.py",
        "lib/.gitignore",
        "lib/build/x",
        "lib/keep.log",
    }


def test_smlaunchignore_overrides_gitignore(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            ".gitignore": "model.py\n",
            ".smlaunchignore": "!model.py\nnotes.md\n",
            "model.py": "",
            "notes.md": "",
        },
    )
    assert "model.py" in pack_source(root).files
    assert "notes.md" not in pack_source(root).files


def test_rules_of_the_repository_apply_unless_it_ignores_the_folder(tmp_path: Path) -> None:
    tree(tmp_path, {".git/HEAD": "", ".gitignore": "*.bin\nscratch/\n"})
    tree(tmp_path, {"jobs/train.py": "", "jobs/w.bin": "", "scratch/train.py": "", "scratch/w.bin": ""})
    assert pack_source(tmp_path / "jobs").files == ("train.py",)
    assert pack_source(tmp_path / "scratch").files == ("train.py", "w.bin")


def test_caches_and_environments_are_excluded(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "train.py": "",
            ".git/HEAD": "",
            "__pycache__/a.pyc": "",
            "a.pyc": "",
            ".env": "SECRET=1",
            "env/pyvenv.cfg": "",
            "env/lib/x.py": "",
            "lib/.DS_Store": "",
        },
    )
    assert pack_source(root).files == ("train.py",)


def test_a_folder_full_of_data_is_refused_with_what_fills_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, {"train.py": "", "data/a.bin": "x" * 3000, "data/b.bin": "x" * 3000})
    monkeypatch.setattr(source_archive, "LIMIT_BYTES", 5000)
    with pytest.raises(JobError, match=r"source: .*largest: data .* in 2 files, .*; name what is not code"):
        pack_source(root)


def test_a_large_source_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path, {"weights.bin": "x" * 3000})
    monkeypatch.setattr(source_archive, "WARN_ABOVE_BYTES", 1000)
    assert "largest: weights.bin" in pack_source(root).warnings[0]


def test_an_invalid_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="does not exist"):
        pack_source(tmp_path / "nowhere")
    file = tree(tmp_path, {"file": ""}) / "file"
    with pytest.raises(JobError, match="a folder is needed"):
        pack_source(file)
