"""Two runs of one script compared: what differs first, and what that usually comes from. Pure.

The order of the questions is the order in which one thing causes another: the samples of a step, then its
loss, then the state it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from smlaunch.runs.verify.hints import Hints
from smlaunch.runs.verify.traces import RankTrace, StepSeen

_SHOWN = 8
_LINES = 3


@dataclass(frozen=True)
class Account:
    """One run as it went: ``files``: sha256 by path of what lies in the model's archive."""

    jobs: tuple[str, ...]
    ranks: Mapping[int, RankTrace]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def last_step(self) -> int:
        return max((rank.last_step for rank in self.ranks.values()), default=0)


@dataclass(frozen=True)
class Verdict:
    """``differences``: sentences, what differs first first. ``causes``: the likely ones, and what to do."""

    differences: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "differences": list(self.differences),
            "causes": list(self.causes),
            "notes": list(self.notes),
        }


def compare(unsplit: Account, cut: Account, hints: Hints) -> Verdict:
    """What the cuts have changed. ``hints``: of the script's text."""
    if not unsplit.ranks or not cut.ranks:
        return _compare_files(unsplit, cut, hints)
    differences, causes = [], []
    if set(unsplit.ranks) != set(cut.ranks):
        differences.append(f"{len(unsplit.ranks)} ranks trained unsplit, {len(cut.ranks)} when cut")
        causes.append(
            "the number of ranks differs between the jobs; exactness holds for the same number only"
        )
    steps, why = _compare_steps(unsplit, cut, hints)
    differences += steps
    causes += why
    states = list(_differing(unsplit, cut))
    if states:
        differences.append("in the end differ: " + ", ".join(states))
        if not causes:
            causes += _causes_of_states(states)
    return Verdict(tuple(differences), tuple(causes), _notes(unsplit, cut, differences))


def _compare_steps(unsplit: Account, cut: Account, hints: Hints) -> tuple[list[str], list[str]]:
    """The first step that went another way, over all ranks."""
    firsts: list[tuple[int, int, StepSeen | None, StepSeen | None]] = []
    for rank in sorted(set(unsplit.ranks) & set(cut.ranks)):
        wanted = {row.step: row for row in unsplit.ranks[rank].steps}
        for seen in cut.ranks[rank].steps:
            same = wanted.get(seen.step)
            if same is None or (seen.samples, seen.loss) != (same.samples, same.loss):
                firsts.append((seen.step, rank, seen, same))
                break
        missing = min(set(wanted) - {row.step for row in cut.ranks[rank].steps}, default=None)
        if missing is not None:
            firsts.append((missing, rank, None, wanted[missing]))
    if not firsts:
        return [], []
    step, rank, row, expected = min(firsts, key=lambda first: first[:2])
    if row is None:
        return [f"step {step} was done by nobody (rank {rank})"], [
            "the step is counted on although it was not done: call step() after every step, and nowhere else"
        ]
    if expected is None:
        return [f"step {step} was done, and is not in the unsplit run (rank {rank})"], [
            "the loop does not end where the unsplit one does: let batches() count epochs or steps, since a "
            "loop of the script's own begins to count anew"
        ]
    first_of_job = cut.ranks[rank].begun(row.job) == row.step and row.job > 0
    where = f"step {step} on rank {rank}, " + _place(cut.ranks[rank], row)
    if row.samples != expected.samples:
        told = f"{where} used samples {_few(row.samples)} in place of {_few(expected.samples)}"
        return [told], [_cause_of_order(hints)]
    told = f"{where} had loss {row.loss!r} in place of {expected.loss!r}, with the same samples"
    components = set(cut.ranks[rank].final) | set(unsplit.ranks[rank].final)
    return [told], list(_causes_of_loss(first_of_job, components, hints))


def _place(trace: RankTrace, row: StepSeen) -> str:
    begun = trace.begun(row.job)
    if row.job == 0 or begun is None:
        return "before any cut"
    if begun == row.step:
        return f"the first one after cut {row.job}"
    return f"{row.step - begun} after the first one that followed cut {row.job}"


def _cause_of_order(hints: Hints) -> str:
    loader = f" ({_lines(hints.loaders)})" if hints.loaders else ""
    return (
        f"the order of samples is not continued: a sampler or DataLoader{loader} begins anew after a "
        "restart. Take the order from ResumableOrder and batches from its loader()"
    )


def _causes_of_loss(first_of_job: bool, components: set[str], hints: Hints) -> Iterator[str]:
    if not first_of_job:
        yield from _causes_of_update(components, hints)
        return
    if hints.uses_torch and "model" not in components:
        yield "the model's state is not kept: hand it to the Checkpointer as model=, or register it"
    drawn = f" The script draws from them here: {_lines(hints.random)}." if hints.random else ""
    yield (
        "the step itself computed something else from the same samples and the state that was kept: random "
        f"numbers of augmentation or dropout are not the ones of the unsplit run.{drawn} Whatever runs ahead "
        "(a prefetching loader, its workers, batches that are skipped) draws from a global generator too, so "
        "that its place is lost with a cut; draw from a generator of the sample's own (docs/resume.md)"
    )


def _causes_of_update(components: set[str], hints: Hints) -> Iterator[str]:
    """The first step after the cut was right, and a later one is not: what an update left was not kept."""
    named = (
        ("scheduler", hints.schedulers, "scheduler="),
        ("scaler", hints.scalers, "scaler="),
        ("ema", hints.averages, "a name of your choice, as ema="),
    )
    known = False
    for name, lines, how in named:
        if name not in components and lines:
            known = True
            yield (
                f"the state of the {name} is not kept: {_lines(lines)} begins anew after a restart. Hand it "
                f"to the Checkpointer as {how}"
            )
    if hints.uses_torch and "optimizer" not in components:
        known = True
        yield "the optimizer's state is not kept: hand it to the Checkpointer as optimizer=, or register it"
    if not known:
        yield (
            "the first step after the cut was right and its update was not: something that changes from step "
            "to step (a schedule, an average, a counter, a gradient that is accumulated) is not kept: "
            f"register it with the Checkpointer. Kept are {', '.join(sorted(components)) or 'no components'}"
        )


def _differing(unsplit: Account, cut: Account) -> Iterator[str]:
    """Components whose final state differs, each with the ranks where it does."""
    ranks: dict[str, list[int]] = {}
    for rank in sorted(set(unsplit.ranks) & set(cut.ranks)):
        ours, theirs = unsplit.ranks[rank].final, cut.ranks[rank].final
        for name in sorted(set(ours) | set(theirs)):
            if ours.get(name) != theirs.get(name):
                ranks.setdefault(name, []).append(rank)
    for name, where in ranks.items():
        everywhere = len(where) == len(unsplit.ranks)
        yield name if everywhere else f"{name} (rank {', '.join(map(str, where))})"


def _causes_of_states(states: list[str]) -> Iterator[str]:
    """Samples and losses were the same throughout."""
    for state in states:
        name = state.split(" ")[0]
        if name.startswith("rng."):
            yield (
                f"{name}: more or fewer numbers were drawn, which nothing used so far; something draws at "
                "every start of the script, after its state was given back"
            )
        elif name.endswith(".buffers"):
            yield f"{name}: running averages differ while losses do not; the model ran outside of its steps"
        else:
            yield f"{name}: its state is not given back whole; check its load_state_dict()"


def _compare_files(unsplit: Account, cut: Account, hints: Hints) -> Verdict:
    ours, theirs = unsplit.files, cut.files
    differing = sorted(name for name in set(ours) | set(theirs) if ours.get(name) != theirs.get(name))
    if not differing:
        if not ours:
            return Verdict(
                ("nothing could be compared: no file lies in the model directory",),
                ("use smlaunch.train, or let the script write its weights to SM_MODEL_DIR",),
            )
        return Verdict()
    names = ", ".join(_told_file(name, ours, theirs) for name in differing[:_SHOWN])
    causes = [
        "the script does not use smlaunch.train, so that only its files can be compared: what it does not "
        "save itself (order of samples, optimizer, scheduler, random state) begins anew after a restart"
    ]
    if hints.schedulers:
        causes.append(f"it has a schedule that must be kept: {_lines(hints.schedulers)}")
    if hints.random:
        causes.append(f"it draws from global generators: {_lines(hints.random)}")
    return Verdict((f"in the model differ: {names}",), tuple(causes))


def _notes(unsplit: Account, cut: Account, differences: list[str]) -> tuple[str, ...]:
    """Files of a traced script say less than its state: a timing in them is no difference of the training."""
    differing = sorted(
        name for name in set(unsplit.files) | set(cut.files) if unsplit.files.get(name) != cut.files.get(name)
    )
    if differing and not differences:
        return (f"state and samples are identical, but not the files {', '.join(differing[:_SHOWN])}",)
    return ()


def _told_file(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    if name not in theirs:
        return f"{name} (missing after cuts)"
    return name if name in ours else f"{name} (only after cuts)"


def _few(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:_SHOWN]))
    return f"[{shown}{', ...' if len(samples) > _SHOWN else ''}]"


def _lines(lines: tuple[str, ...]) -> str:
    more = len(lines) - _LINES
    return ", ".join(lines[:_LINES]) + (f" and {more} more" if more > 0 else "")
