"""What a job's program finds at each isolation level, as data: docs/isolation.md shows the table, tests
check it.

Each row is a question that a program on a host can answer; test_acceptance.py asks all of them at every
level.
"""
# The rows name directories that this module does not use.
# ruff: noqa: S108

from __future__ import annotations

from dataclasses import dataclass

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


@dataclass(frozen=True)
class Answer:
    """The answer at one level."""

    holds: bool
    """What the program finds."""
    note: str = ""
    """An explanation for readers."""

    def __str__(self) -> str:
        word = "yes" if self.holds else "no"
        return f"{word}: {self.note}" if self.note else word


@dataclass(frozen=True)
class Difference:
    """One row of the table."""

    key: str
    """The name under which the test's program prints its finding."""
    question: str
    full: Answer
    user: Answer
    plain: Answer

    def at(self, level: str) -> Answer:
        """Return the answer at a level."""
        answer: Answer = getattr(self, level)
        return answer


_YES, _NO = Answer(True), Answer(False)

DIFFERENCES = (
    Difference(
        "contract",
        "The contract's tree is at /opt/ml",
        _YES,
        _YES,
        Answer(
            False,
            "where SMLAUNCH_ML_ROOT says; words of ContainerEntrypoint that begin with /opt/ml/ are moved",
        ),
    ),
    Difference(
        "hostname",
        "The host's own name is the one in resourceconfig.json",
        _YES,
        _YES,
        Answer(False, "it is the machine's; resourceconfig.json has loopback addresses for names"),
    ),
    Difference("resolves", "Every host's name resolves to an address of that host alone", _YES, _YES, _YES),
    Difference(
        "pid_1",
        "The first process is pid 1 and sees its own host's processes only",
        _YES,
        _YES,
        Answer(False, "it sees all of the machine's"),
    ),
    Difference(
        "ignores_sigterm",
        "A first process without a handler does not notice SIGTERM, as in a container",
        _YES,
        _YES,
        Answer(False, "it dies of it at once"),
    ),
    Difference("own_tmp", "/tmp is the host's own", _YES, _YES, Answer(False, "the machine's")),
    Difference("own_tempdir", "Temporary files (TMPDIR) are the host's own and go with it", _YES, _YES, _YES),
    Difference("own_shm", "/dev/shm is the host's own", _YES, _YES, Answer(False, "the machine's")),
    Difference(
        "harmless",
        "Writing into a File channel works and harms neither the data nor other hosts",
        _YES,
        _YES,
        Answer(True, "every host has a copy"),
    ),
    Difference(
        "isolated",
        "EnableNetworkIsolation closes the network, but for the job's hosts among themselves",
        _YES,
        _YES,
        Answer(False, "the network stays open; the job's log says so"),
    ),
    Difference(
        "root",
        "The program is root (uid 0)",
        _YES,
        Answer(True, "by an id map with one entry: 0 is the user who started the endpoint"),
        Answer(False, "it is the user who started the endpoint"),
    ),
    Difference(
        "machine_writable",
        "The program could change files of the machine's root",
        Answer(True, "levels keep jobs apart; they are no defence against a program"),
        Answer(False, "they show as nobody's (65534); writing fails with Permission denied"),
        Answer(False, "writing fails with Permission denied"),
    ),
    Difference(
        "gives_away",
        "Files can be given to other users (chown, tar as root)",
        _YES,
        Answer(False, "fails with Invalid argument: the id map has one entry"),
        Answer(False, "fails with Operation not permitted"),
    ),
)


def table() -> str:
    """Return the table as Markdown."""
    lines = ["| | full | user | plain |", "|---|---|---|---|"]
    lines += [f"| {row.question} | {row.full} | {row.user} | {row.plain} |" for row in DIFFERENCES]
    return "\n".join(lines)
