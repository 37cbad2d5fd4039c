"""What a difference usually comes from, and what to do about it. Pure, and no more than likely."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smlaunch.runs.verify.hints import Hints

_LINES = 3

NUMBER_OF_RANKS = "the number of ranks differs between the jobs; exactness holds for the same number only"
NO_START = (
    "the script does not start on the checkpoints it has made: every start after a cut finds them in place"
)
STEP_LEFT_OUT = (
    "the step is counted on although it was not done: call step() after every step, and nowhere else"
)
STEP_TOO_MANY = (
    "the loop does not end where the unsplit one does: let batches() count epochs or steps, since a loop of "
    "the script's own begins to count anew"
)


def of_order(hints: Hints) -> str:
    loader = f" ({_lines(hints.loaders)})" if hints.loaders else ""
    return (
        f"the order of samples is not continued: a sampler or DataLoader{loader} begins anew after a "
        "restart. Take the order from ResumableOrder and batches from its loader()"
    )


def of_loss(first_of_job: bool, components: Collection[str], hints: Hints) -> Iterator[str]:
    if not first_of_job:
        yield from _of_update(components, hints)
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


def _of_update(components: Collection[str], hints: Hints) -> Iterator[str]:
    """The first step after the cut was right, and a later one is not: what an update left was not kept."""
    known = False
    for cause in _of_what_is_not_kept(components, hints):
        known = True
        yield cause
    if hints.uses_torch and "optimizer" not in components:
        known = True
        yield "the optimizer's state is not kept: hand it to the Checkpointer as optimizer=, or register it"
    if not known:
        yield (
            "the first step after the cut was right and its update was not: something that changes from step "
            "to step (a schedule, an average, a counter, a gradient that is accumulated) is not kept: "
            f"register it with the Checkpointer. Kept are {_names(components)}"
        )


def _of_what_is_not_kept(components: Collection[str], hints: Hints) -> Iterator[str]:
    named = (
        ("scheduler", hints.schedulers, "scheduler="),
        ("scaler", hints.scalers, "scaler="),
        ("ema", hints.averages, "a name of your choice, as ema="),
    )
    for name, lines, how in named:
        if name not in components and lines:
            yield (
                f"the state of the {name} is not kept: {_lines(lines)} begins anew after a restart. Hand it "
                f"to the Checkpointer as {how}"
            )


def of_states(names: Collection[str], generators: Collection[str]) -> Iterator[str]:
    """Samples and losses were the same throughout."""
    for name in names:
        if name in generators:
            yield (
                f"{name}: more or fewer numbers were drawn, which nothing used so far; something draws at "
                "every start of the script, after its state was given back"
            )
        elif name.endswith(".buffers"):
            yield f"{name}: running averages differ while losses do not; the model ran outside of its steps"
        else:
            yield f"{name}: its state is not given back whole; check its load_state_dict()"


def of_no_seed(name: str, hints: Hints) -> str:
    """A generator that is drawn from and began elsewhere in every run."""
    whose, marks, how = _GLOBAL.get(
        name, (f"the generator registered as {name}", (), "make it with a number as its seed")
    )
    where = [line for line in hints.random if any(mark in line for mark in marks)]
    lines = f" (here: {_lines(tuple(where))})" if where else ""
    return f"{whose} is drawn from{lines} and was not seeded: {how} before the training begins"


_GLOBAL = {
    "smlaunch.rng.python": ("Python's global generator", (" random.",), "call random.seed(1)"),
    "smlaunch.rng.numpy": (
        "NumPy's global generator",
        (" np.random.", " numpy.random."),
        "call numpy.random.seed(1)",
    ),
    "smlaunch.rng.torch": ("PyTorch's global generator", (" torch.", "Random"), "call torch.manual_seed(1)"),
    "smlaunch.rng.cuda": ("PyTorch's generator on the GPU", (" torch.",), "call torch.manual_seed(1)"),
}


def of_files(components: Collection[str], hints: Hints) -> Iterator[str]:
    """The training went the same way as far as it could be seen, and what it wrote differs."""
    if components:
        yield from _of_what_is_not_kept(components, hints)
        yield (
            "samples, losses and registered state are the same, and what the script saves is not: it saves "
            "something that is not registered with the Checkpointer (a moving average, buffers, the best so "
            f"far, a history), or wrote it in a job before the last one. Registered are {_names(components)}"
        )
        return
    yield (
        "the script does not use smlaunch.train, so that only its files can be compared: what it does not "
        "save itself (order of samples, optimizer, scheduler, random state) begins anew after a restart"
    )
    if hints.schedulers:
        yield f"it has a schedule that must be kept: {_lines(hints.schedulers)}"
    if hints.random:
        yield f"it draws from global generators: {_lines(hints.random)}"


def of_no_repetition(what: str) -> str:
    return (
        f"two unsplit runs differ already ({what}): without any cut the script does not come out the same, "
        "which is not the resume's fault, and nothing can be said of resuming it. Set all seeds, and try "
        "--deterministic; a time or an id in a file of weights had better be in a file of its own"
    )


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no components"


def _lines(lines: tuple[str, ...]) -> str:
    more = len(lines) - _LINES
    return ", ".join(lines[:_LINES]) + (f" and {more} more" if more > 0 else "")
