"""Two runs of one script compared: what differs first, and what that usually comes from. Pure.

The order of the questions is the order in which one thing causes another: the samples of a step, then its
loss, then the state it leaves, then the files that are made of it. A verdict says what was compared, and what
was not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from smlaunch.runs.verify import causes
from smlaunch.runs.verify.artefacts import MODEL, OUTPUT, File, Files
from smlaunch.runs.verify.hints import Hints
from smlaunch.runs.verify.traces import RankTrace, StepSeen

_SHOWN = 8
_ORDER = "order"


@dataclass(frozen=True)
class Account:
    """One run as it went. ``files``: what its last job left. ``earlier``: what the jobs before it left; None
    for one that failed, of which the service keeps nothing."""

    jobs: tuple[str, ...]
    ranks: Mapping[int, RankTrace]
    files: Files = field(default_factory=dict)
    earlier: tuple[Files | None, ...] = ()

    @property
    def last_step(self) -> int:
        return max((rank.last_step for rank in self.ranks.values()), default=0)

    @property
    def is_traced(self) -> bool:
        return bool(self.ranks)


class Difference(NamedTuple):
    """``kind``: "run" for one that did not come to its end. ``name``: a component, or a file. ``place``: the
    value in the file. ``text``: how it differs. ``bulk``: it is of the size of weights. ``values``: as they
    read, where they are short."""

    kind: Literal["run", "ranks", "steps", "state", "file"]
    name: str = ""
    place: str = ""
    text: str = ""
    bulk: bool = True
    values: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.name, self.place


@dataclass(frozen=True)
class Verdict:
    """``found``: what differs, what differs first first. ``causes``: the likely ones, and what to do.
    ``seeds``: those of them that hold without any cut, too. ``is_grounded``: state or weights were compared,
    and not just what stands beside them."""

    found: tuple[Difference, ...] = ()
    causes: tuple[str, ...] = ()
    seeds: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    is_grounded: bool = False

    @property
    def identical(self) -> bool:
        return not self.found

    @property
    def differences(self) -> list[str]:
        return list(_sentences(self.found))

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "differences": self.differences,
            "causes": list(self.causes),
            "compared": list(self.compared),
            "not_compared": list(self.not_compared),
        }


def compare(unsplit: Account, cut: Account, hints: Hints) -> Verdict:
    """What the cuts have changed. ``hints``: of the script's text."""
    found: list[Difference] = []
    why: list[str] = []
    if set(unsplit.ranks) != set(cut.ranks):
        told = f"{len(unsplit.ranks)} ranks trained unsplit, {len(cut.ranks)} when cut"
        found.append(Difference("ranks", text=told))
        why.append(causes.NUMBER_OF_RANKS)
    for difference, its_causes in _compare_steps(unsplit, cut, hints):
        found.append(difference)
        why += its_causes
    generators = {name for rank in unsplit.ranks.values() for name in rank.entered}
    states, idle = _compare_states(unsplit, cut)
    unseeded = [one.name for one in states if _is_unseeded(one.name, unsplit, cut)]
    seeds = tuple(causes.of_no_seed(name, hints) for name in unseeded)
    found += states
    if states and not why:
        why += causes.of_states([one.name for one in states if one.name not in unseeded], generators)
    files, told_files = _compare_files(unsplit, cut)
    if files and not found:
        why += causes.of_files(_components(unsplit), hints)
    found += files
    compared, not_compared = _scope(unsplit, cut, {*idle, *told_files})
    components = _components(unsplit) - generators - {_ORDER}
    equal_weights = any(
        leaf.bulk and leaf == cut.files[name].leaves.get(place)
        for name, file in unsplit.files.items()
        if name in cut.files
        for place, leaf in file.leaves.items()
    )
    return Verdict(
        tuple(found),
        (*why, *seeds),
        seeds,
        compared,
        (*not_compared, *(f"{name}: nothing has drawn from it" for name in idle), *told_files.values()),
        is_grounded=bool(components) or equal_weights,
    )


# ---- steps -----------------------------------------------------------------------------------------------


def _compare_steps(
    unsplit: Account, cut: Account, hints: Hints
) -> Iterator[tuple[Difference, Sequence[str]]]:
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
        return
    step, rank, row, expected = min(firsts, key=lambda first: first[:2])
    if row is None:
        told = f"step {step} was done by nobody (rank {rank})"
        yield Difference("steps", text=told), [causes.STEP_LEFT_OUT]
        return
    if expected is None:
        told = f"step {step} was done, and is not in the unsplit run (rank {rank})"
        yield Difference("steps", text=told), [causes.STEP_TOO_MANY]
        return
    first_of_job = cut.ranks[rank].begun(row.job) == row.step and row.job > 0
    where = f"step {step} on rank {rank}, " + _place(cut.ranks[rank], row)
    if row.samples != expected.samples:
        told = f"{where} used samples {_few(row.samples)} in place of {_few(expected.samples)}"
        yield Difference("steps", text=told), [causes.of_order(hints)]
        return
    told = f"{where} had loss {row.loss} in place of {expected.loss}, with the same samples"
    components = _components(cut) | _components(unsplit)
    yield Difference("steps", text=told), list(causes.of_loss(first_of_job, components, hints))


def _place(trace: RankTrace, row: StepSeen) -> str:
    begun = trace.begun(row.job)
    if row.job == 0 or begun is None:
        return "before any cut"
    if begun == row.step:
        return f"the first one after cut {row.job}"
    return f"{row.step - begun} after the first one that followed cut {row.job}"


# ---- state -----------------------------------------------------------------------------------------------


def _components(account: Account) -> set[str]:
    return {name for rank in account.ranks.values() for name in rank.final}


def _compare_states(unsplit: Account, cut: Account) -> tuple[list[Difference], list[str]]:
    """Components whose state differs in the end, or where both runs took a checkpoint after the same step;
    and generators that stand elsewhere only because nobody seeded them, and nobody used them."""
    ends: dict[str, list[int]] = {}
    midst: dict[str, int] = {}
    idle: set[str] = set()
    for rank in sorted(set(unsplit.ranks) & set(cut.ranks)):
        ours, theirs = unsplit.ranks[rank], cut.ranks[rank]

        def differing(one: Mapping[str, str], other: Mapping[str, str], rank: int = rank) -> Iterator[str]:
            for name in sorted(set(one) | set(other)):
                if one.get(name) != other.get(name):
                    if _is_idle(name, unsplit.ranks[rank]) and _is_idle(name, cut.ranks[rank]):
                        idle.add(name)
                    else:
                        yield name

        if ours.final and theirs.final:
            for name in differing(ours.final, theirs.final):
                ends.setdefault(name, []).append(rank)
        passed = {state.step: state.digests for state in ours.states if not state.closing}
        for state in theirs.states:
            if not state.closing and state.step in passed:
                for name in differing(passed[state.step], state.digests):
                    midst.setdefault(name, state.step)
    found = []
    for name, ranks in ends.items():
        everywhere = len(ranks) == len(unsplit.ranks)
        found.append(Difference("state", name, text="" if everywhere else f"rank {_listed(ranks)}"))
    for name, step in midst.items():
        if name not in ends:
            found.append(Difference("state", name, text=f"after step {step}, no more in the end"))
    return found, sorted(idle)


def _is_idle(name: str, trace: RankTrace) -> bool:
    return name in trace.generators and name not in trace.drawn


def _is_unseeded(name: str, unsplit: Account, cut: Account) -> bool:
    """It began elsewhere although nothing had been cut then."""
    return any(
        name in unsplit.ranks[rank].entered
        and unsplit.ranks[rank].entered[name] != cut.ranks[rank].entered.get(name)
        for rank in set(unsplit.ranks) & set(cut.ranks)
    )


# ---- files -----------------------------------------------------------------------------------------------


def _compare_files(unsplit: Account, cut: Account) -> tuple[list[Difference], dict[str, str]]:
    """Value by value; and what is to be told of files that are the same only in a way."""
    found, told = [], {}
    theirs = {name: file for files in cut.earlier for name, file in (files or {}).items() if _is_output(name)}
    theirs.update(cut.files)
    for name in sorted(set(unsplit.files) | set(theirs)):
        ours, other = unsplit.files.get(name), theirs.get(name)
        if ours is None or other is None:
            file = ours or other
            assert file is not None
            bulk = any(leaf.bulk for leaf in file.leaves.values())
            found.append(Difference("file", name, text="missing" if other is None else "only", bulk=bulk))
            continue
        differing = [
            Difference(
                "file",
                name,
                place,
                bulk=any(leaf.bulk for leaf in (one, two) if leaf is not None),
                values=tuple(leaf.text if leaf is not None else "" for leaf in (one, two)),
            )
            for place in sorted(set(ours.leaves) | set(other.leaves))
            if (one := ours.leaves.get(place)) != (two := other.leaves.get(place))
        ]
        in_pieces = _told_pieces(name, ours, cut) if differing and _is_output(name) else None
        if in_pieces is not None:
            told[name] = in_pieces
        else:
            found += differing
    return found, told


def _is_output(name: str) -> bool:
    return name.startswith(OUTPUT)


def _told_pieces(name: str, whole: File, cut: Account) -> str | None:
    """Each job begins with an empty output/data and leaves an archive of its own, so that a log that is
    written as the training goes on comes in pieces."""
    if whole.lines is None or not cut.earlier:
        return None
    wanted, found = set(whole.lines), set[str]()
    files = [*(files.get(name) for files in cut.earlier if files is not None), cut.files.get(name)]
    pieces = [file.lines or () for file in files if file is not None]
    for lines in pieces:
        # A job that was stopped may have been about to write its last line.
        found.update(
            lines[:-1] if lines is not pieces[-1] and lines[-1:] and lines[-1] not in wanted else lines
        )
    if not found or found - wanted:
        return None
    if found == wanted:
        return f"{name} as one file: it is in pieces, whose lines together are those of the unsplit run"
    if None in cut.earlier:
        return (
            f"{name}: the lines of jobs that failed, of which the service keeps no output; the others agree"
        )
    return None


# ---- words -----------------------------------------------------------------------------------------------


def _scope(unsplit: Account, cut: Account, aside: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What was compared, and what was not. ``aside``: components and files that are told of by themselves."""
    done: list[str] = []
    left: list[str] = []
    both = sorted(set(unsplit.ranks) & set(cut.ranks))
    steps = [row for rank in both for row in unsplit.ranks[rank].steps]
    if not unsplit.is_traced:
        left.append("samples, losses, state: the script does not use the Checkpointer of smlaunch.train")
    else:
        count = f"of {unsplit.last_step} steps"
        if any(row.samples for row in steps):
            done.append(f"samples {count}")
        else:
            left.append("samples: no ResumableOrder is handed to the Checkpointer as order=")
        if any(row.loss is not None for row in steps):
            done.append(f"losses {count}")
        else:
            left.append("losses: none is handed to step() as loss=")
        kept = {name for rank in both if cut.ranks[rank].final for name in unsplit.ranks[rank].final}
        if kept - set(aside):
            done.append(f"state in the end: {', '.join(sorted(kept - set(aside)))}")
        unseen = [rank for rank in both if not (unsplit.ranks[rank].final and cut.ranks[rank].final)]
        if unseen:
            left.append(f"state of rank {_listed(unseen)}: the script ended without leaving the Checkpointer")
    done += sorted(set(unsplit.files) & set(cut.files) - set(aside))
    names = {*unsplit.files, *cut.files}
    empty = [top[:-1] for top in (MODEL, OUTPUT) if not any(name.startswith(top) for name in names)]
    return tuple(done), (*left, *(f"{top}: no file lies in /opt/ml/{top}" for top in empty))


def _sentences(found: Sequence[Difference]) -> Iterator[str]:
    for one in found:
        if one.kind in ("run", "ranks", "steps"):
            yield one.text
    states = [f"{one.name} ({one.text})" if one.text else one.name for one in found if one.kind == "state"]
    if states:
        yield "in the end differ: " + ", ".join(states)
    files: dict[str, list[Difference]] = {}
    for one in found:
        if one.kind == "file":
            files.setdefault(one.name, []).append(one)
    for name, differences in files.items():
        yield told_file(name, differences)


def told_file(name: str, differences: Sequence[Difference]) -> str:
    first = differences[0]
    if first.text == "missing":
        return f"{name} is missing after cuts"
    if first.text == "only":
        return f"{name} is there only after cuts"
    places = [_told_value(one) for one in differences if one.place or any(one.values)]
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return f"{name} differs" + (f" in {', '.join(places[:_SHOWN])}{more}" if places else "")


def _told_value(one: Difference) -> str:
    place = printable(one.place)
    values = " in place of ".join(repr(value) for value in reversed(one.values)) if all(one.values) else ""
    return " ".join(filter(None, (place, f"({values})" if values and place else values)))


def printable(name: str) -> str:
    """A file's author chooses what stands in it; a terminal shall not act on that."""
    return name if name.isprintable() else ascii(name)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _few(samples: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, samples[:_SHOWN]))
    return f"[{shown}{', ...' if len(samples) > _SHOWN else ''}]"
