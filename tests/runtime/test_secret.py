"""The job's secret: it is read from its file, and proofs of it do not disclose it."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import pytest

from smlaunch.runtime import job_secret
from smlaunch.runtime.errors import SetupError

KEY = bytes(range(32))


def test_the_file_holds_the_key_in_hex(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(KEY.hex() + "\n")
    assert job_secret.read_secret(str(tmp_path / "secret")) == KEY


@pytest.mark.parametrize("content", ["", "ab" * 31, "ab" * 33, "zz" * 32, "ab " * 21 + "a", "é" * 32])
def test_anything_else_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "secret").write_text(content)
    with pytest.raises(SetupError, match="not a secret: 64 hexadecimal digits are needed") as refused:
        job_secret.read_secret(str(tmp_path / "secret"))
    assert not content or content not in str(refused.value)


def test_without_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"secret: No such file or directory: without it .* submit the job again"
    ):
        job_secret.read_secret(str(tmp_path / "secret"))


def test_a_proof_is_an_hmac_over_parts_with_their_lengths() -> None:
    signed = b"".join(len(part).to_bytes(8, "big") + part for part in (b"link", b"leader", b"n1", b""))
    assert (
        job_secret.compute_proof(KEY, "link", "leader", b"n1", b"")
        == hmac.new(KEY, signed, hashlib.sha256).digest()
    )


def test_every_part_of_it_counts() -> None:
    proofs = [
        job_secret.compute_proof(KEY, "link", "leader", b"ab", b"c"),
        job_secret.compute_proof(KEY, "link", "leader", b"a", b"bc"),
        job_secret.compute_proof(KEY, "link", "leader", b"abc"),
        job_secret.compute_proof(KEY, "link", "follower", b"ab", b"c"),
        job_secret.compute_proof(KEY, "exec", "leader", b"ab", b"c"),
        job_secret.compute_proof(bytes(32), "link", "leader", b"ab", b"c"),
    ]
    assert len(set(proofs)) == len(proofs)
    assert job_secret.equal_constant_time(proofs[0], bytes(proofs[0]))
    assert not any(job_secret.equal_constant_time(proofs[0], other) for other in proofs[1:])


def test_nonces_are_fresh() -> None:
    assert len({job_secret.make_nonce() for _ in range(100)}) == 100
    assert {len(job_secret.make_nonce())} == {job_secret.NONCE_BYTES}
