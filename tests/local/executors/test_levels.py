from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.errors import EndpointError
from smlaunch.local.executors import isolation_levels
from smlaunch.local.executors.isolation_levels import IsolationLevel


def test_plain_works_everywhere() -> None:
    assert isolation_levels.probe_isolation_level("plain") == IsolationLevel("plain", works=True)


def test_a_level_that_does_not_work_says_why() -> None:
    for level in isolation_levels.probe_isolation_levels():
        assert level.works != bool(level.why_not)


def test_the_best_is_remembered_for_this_machine_and_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "levels.json"
    probed_levels: list[str] = []

    def probe(name: str, scratch: Path | None = None) -> IsolationLevel:
        probed_levels.append(name)
        return IsolationLevel(name, works=name != "full", why_not="no root" if name == "full" else "")

    monkeypatch.setattr(isolation_levels, "probe_isolation_level", probe)
    assert isolation_levels.choose_isolation_level(tmp_path, cache).name == "user"
    assert isolation_levels.choose_isolation_level(tmp_path, cache).name == "user"
    assert probed_levels == ["full", "user"]
    with pytest.raises(EndpointError, match="isolation full does not work here: no root"):
        isolation_levels.choose_isolation_level(tmp_path, cache, "full")
    with pytest.raises(EndpointError, match="'half' is unknown"):
        isolation_levels.choose_isolation_level(tmp_path, cache, "half")
    document = json.loads(cache.read_text())
    cache.write_text(json.dumps({**document, "fingerprint": "another boot"}))
    assert isolation_levels.choose_isolation_level(tmp_path, cache, "plain").name == "plain"
    assert probed_levels == ["full", "user", "plain"]


def test_what_forbids_namespaces_is_explained() -> None:
    assert "max_user_namespaces" in isolation_levels._add_likely_cause("unshare: No space left on device")
    assert "CAP_SYS_ADMIN" in isolation_levels._add_likely_cause("unshare: Operation not permitted")
