"""What a person should know about an isolation level. Clients show it too, who run no hosts themselves."""

from __future__ import annotations

from collections.abc import Iterator

from smlaunch.contract.paths import ROOT_VARIABLE


def notes_on(level: str, isolated_network: bool = False) -> Iterator[str]:
    """Before a job starts there."""
    if level != "plain":
        return
    yield (
        f"isolation plain: the contract's tree is where {ROOT_VARIABLE} says, not at /opt/ml, and hosts are "
        "called by their addresses: a script that hard-codes /opt/ml or algo-1 cannot work here"
    )
    if isolated_network:
        yield "isolation plain: EnableNetworkIsolation is without effect, the network can be reached"
