"""Notes for users on isolation levels. Clients that run no hosts print them too."""

from __future__ import annotations

from collections.abc import Iterator

from smlaunch.contract.sagemaker_paths import ROOT_VARIABLE


def notes_about_level(level: str, isolated_network: bool = False) -> Iterator[str]:
    """Yield what a user should know before a job starts at this level."""
    if level != "plain":
        return
    yield (
        f"isolation plain: the contract's tree is where {ROOT_VARIABLE} says, not at /opt/ml, and hosts are "
        "called by their addresses: a script that hard-codes /opt/ml or algo-1 cannot work here"
    )
    if isolated_network:
        yield "isolation plain: EnableNetworkIsolation is without effect, the network can be reached"
