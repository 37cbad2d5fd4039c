"""Likely causes of differences, with advice. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smlaunch.verify.lint import LintFindings

_MAX_SHOWN_LINES = 3

RANK_COUNT_DIFFERS = "the number of ranks differs between the jobs; exactness holds for the same number only"
CANNOT_RESUME = (
    "the script does not start on the checkpoints it has made: every start after a cut finds them in place"
)
STEP_MISSING = "the step counter advanced without the step: call step() after every step, and nowhere else"
STEP_UNEXPECTED = (
    "the loop does not end where the unsplit one does: let batches() count epochs or steps, because a loop "
    "of "
    "the script's own starts counting again after a restart"
)


def explain_sample_order(findings: LintFindings) -> str:
    """Return the cause of different samples: their order is not continued after a restart."""
    loader = f" ({_list_lines(findings.data_loaders)})" if findings.data_loaders else ""
    return (
        f"the order of samples is not continued: a sampler or DataLoader{loader} starts again "
        "after a restart. Take the order from ResumableOrder and batches from its loader()"
    )


def explain_loss_difference(
    is_first_after_cut: bool, component_names: Collection[str], findings: LintFindings
) -> Iterator[str]:
    """Yield likely causes of a loss that differs although the samples are the same. ``component_names``: of
    the state that the checkpoints hold. ``findings``: what the script's text shows."""
    if not is_first_after_cut:
        yield from _explain_update(component_names, findings)
        return
    if findings.uses_torch and "model" not in component_names:
        yield "the model's state is not saved: pass it to the Checkpointer as model=, or register it"
    random_text = (
        f" The script draws from them here: {_list_lines(findings.random_calls)}."
        if findings.random_calls
        else ""
    )
    yield (
        "the step itself computed another result from the same samples and the saved state: random numbers "
        "of "
        f"augmentation or dropout differ from those of the unsplit run.{random_text} Code that runs ahead (a "
        "prefetching loader, its workers, skipped batches) draws from a global generator too, so that a cut "
        "loses the generator's position; draw from a generator of the sample's own (docs/resume.md)"
    )


def _explain_update(component_names: Collection[str], findings: LintFindings) -> Iterator[str]:
    """Explain a right first step after the cut and a wrong later one: state of the update was not saved."""
    has_cause = False
    for cause in _explain_unregistered_components(component_names, findings):
        has_cause = True
        yield cause
    if findings.uses_torch and "optimizer" not in component_names:
        has_cause = True
        yield "the optimizer's state is not saved: pass it to the Checkpointer as optimizer=, or register it"
    if not has_cause:
        yield (
            "the first step after the cut was right and its update was not: a state that changes from step "
            "to step (a schedule, an average, a counter, an accumulated gradient) is not saved: "
            f"register it with the Checkpointer. Saved are {_list_names(component_names)}"
        )


def _explain_unregistered_components(components: Collection[str], findings: LintFindings) -> Iterator[str]:
    candidates = (
        ("scheduler", findings.schedulers, "scheduler="),
        ("scaler", findings.scalers, "scaler="),
        ("ema", findings.moving_averages, "a name of your choice, as ema="),
    )
    for name, lines, argument in candidates:
        if name not in components and lines:
            yield (
                f"the state of the {name} is not saved: {_list_lines(lines)} starts again after a restart. "
                f"Pass it to the Checkpointer as {argument}"
            )


def explain_state_differences(names: Collection[str], generators: Collection[str]) -> Iterator[str]:
    """Explain states that differ although all samples and losses are the same."""
    for name in names:
        if name in generators:
            yield (
                f"{name}: the runs drew different amounts of random numbers, without an effect so far; the "
                "script draws at every start, after the state was restored"
            )
        elif name.endswith(".buffers"):
            yield f"{name}: running averages differ while losses do not; the model ran outside of its steps"
        else:
            yield f"{name}: its state is not restored completely; check its load_state_dict()"


def explain_missing_seed(name: str, findings: LintFindings) -> str:
    """Explain a generator that is used and that starts in another state in every run."""
    generator, call_marks, advice = _GLOBAL_GENERATORS.get(
        name, (f"the generator registered as {name}", (), "make it with a number as its seed")
    )
    call_lines = [line for line in findings.random_calls if any(mark in line for mark in call_marks)]
    location_text = f" (here: {_list_lines(tuple(call_lines))})" if call_lines else ""
    return f"{generator} is drawn from{location_text} and was not seeded: {advice} before the training begins"


_GLOBAL_GENERATORS = {
    "smlaunch.rng.python": ("Python's global generator", (" random.",), "call random.seed(1)"),
    "smlaunch.rng.numpy": (
        "NumPy's global generator",
        (" np.random.", " numpy.random."),
        "call numpy.random.seed(1)",
    ),
    "smlaunch.rng.torch": ("PyTorch's global generator", (" torch.", "Random"), "call torch.manual_seed(1)"),
    "smlaunch.rng.cuda": ("PyTorch's generator on the GPU", (" torch.",), "call torch.manual_seed(1)"),
}


def explain_file_differences(components: Collection[str], findings: LintFindings) -> Iterator[str]:
    """Explain files that differ although the training itself shows no difference."""
    if components:
        yield from _explain_unregistered_components(components, findings)
        yield (
            "samples, losses and registered state are the same, but the saved files are not: the script "
            "saves "
            "a state that is not registered with the Checkpointer (a moving average, buffers, the best "
            "value so "
            f"far, a history), or wrote it in a job before the last one. Registered are "
            f"{_list_names(components)}"
        )
        return
    yield (
        "the script does not use smlaunch.train, so that only its files can be compared: state that it does "
        "not save itself (order of samples, optimizer, scheduler, random state) starts again after a restart"
    )
    if findings.schedulers:
        yield f"it has a schedule that must be saved: {_list_lines(findings.schedulers)}"
    if findings.random_calls:
        yield f"it draws from global generators: {_list_lines(findings.random_calls)}"


def explain_not_repeatable(difference: str) -> str:
    return (
        f"two unsplit runs differ already ({difference}): the script is not repeatable even without a cut, "
        "so that its resume cannot be checked. Set all seeds, and try "
        "--deterministic; write a time or an id to a file of its own instead of a file of weights"
    )


def _list_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no components"


def _list_lines(lines: tuple[str, ...]) -> str:
    hidden_count = len(lines) - _MAX_SHOWN_LINES
    return ", ".join(lines[:_MAX_SHOWN_LINES]) + (f" and {hidden_count} more" if hidden_count > 0 else "")
