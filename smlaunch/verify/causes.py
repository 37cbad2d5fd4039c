"""Likely causes of differences between a resumed run and an uninterrupted one, with advice. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from smlaunch.verify.script_lint import LintFindings

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
    loader = f" ({_join_call_lines(findings.data_loaders)})" if findings.data_loaders else ""
    return (
        f"the order of samples is not continued: a sampler or DataLoader{loader} starts again "
        "after a restart. Take the order from ResumableOrder and batches from its loader()"
    )


def explain_loss_difference(
    is_first_after_cut: bool, saved_components: Collection[str], findings: LintFindings
) -> Iterator[str]:
    """Yield likely causes, with advice, of a training step that used the same samples with and without a
    resume and had another loss.

    ``is_first_after_cut``: it is the first step after the interruption (cut). ``saved_components``: names of
    the state that the checkpoints hold, such as ``model``. ``findings``: calls in the script that may break
    an exact resume.
    """
    if not is_first_after_cut:
        # The first step's loss was right. So the state that was lost is used later in a step: by the update
        # of the parameters, for example the optimizer's.
        yield from _explain_lost_update_state(saved_components, findings)
        return
    if findings.uses_torch and "model" not in saved_components:
        yield "the model's state is not saved: pass it to the Checkpointer as model=, or register it"
    random_calls_text = ""
    if findings.random_calls:
        random_calls_text = f" The script draws from them here: {_join_call_lines(findings.random_calls)}."
    yield (
        "the step itself computed another result from the same samples and the saved state: random numbers "
        f"of augmentation or dropout differ from those of the unsplit run.{random_calls_text} Code that runs "
        "ahead (a prefetching loader, its workers, skipped batches) draws from a global generator too, so "
        "that a cut loses the generator's position; draw from a generator of the sample's own "
        "(docs/resume.md)"
    )


def _explain_lost_update_state(saved_components: Collection[str], findings: LintFindings) -> Iterator[str]:
    """Yield likely causes of a right first step after an interruption and a wrong later one: state that the
    parameter update uses or changes, such as the optimizer's, was not saved. ``saved_components``: names of
    the state that is. ``findings``: calls in the script that make objects with state."""
    known_causes = list(_explain_unregistered_components(saved_components, findings))
    if findings.uses_torch and "optimizer" not in saved_components:
        known_causes.append(
            "the optimizer's state is not saved: pass it to the Checkpointer as optimizer=, or register it"
        )
    yield from known_causes
    if not known_causes:
        yield (
            "the first step after the cut was right and its update was not: a state that changes from step "
            "to step (a schedule, an average, a counter, an accumulated gradient) is not saved: "
            f"register it with the Checkpointer. Saved are {_join_component_names(saved_components)}"
        )


def _explain_unregistered_components(
    saved_components: Collection[str], findings: LintFindings
) -> Iterator[str]:
    """Yield a cause for each object with state that the script makes and does not pass to the Checkpointer: a
    learning rate scheduler, a gradient scaler, a moving average of the weights."""
    candidates = (
        ("scheduler", findings.schedulers, "scheduler="),
        ("scaler", findings.scalers, "scaler="),
        ("ema", findings.moving_averages, "a name of your choice, as ema="),
    )
    for component, call_lines, checkpointer_argument in candidates:
        if component not in saved_components and call_lines:
            yield (
                f"the state of the {component} is not saved: {_join_call_lines(call_lines)} starts again "
                f"after a restart. Pass it to the Checkpointer as {checkpointer_argument}"
            )


def explain_state_differences(
    component_names: Collection[str], random_generators: Collection[str]
) -> Iterator[str]:
    """Yield a likely cause for each component (model, optimizer ...) whose final state differs after a
    resume, although all samples and losses are the same. ``random_generators``: the components that are
    random number generators."""
    for name in component_names:
        if name in random_generators:
            yield (
                f"{name}: the runs drew different amounts of random numbers, without an effect so far; the "
                "script draws at every start, after the state was restored"
            )
        elif name.endswith(".buffers"):  # a module's state that is not trained
            yield f"{name}: running averages differ while losses do not; the model ran outside of its steps"
        else:
            yield f"{name}: its state is not restored completely; check its load_state_dict()"


def explain_missing_seed(generator_name: str, findings: LintFindings) -> str:
    """Return advice for a random number generator that is used, and that starts in another state in every
    run.

    ``generator_name``: a Checkpointer's component, such as ``smlaunch.rng.numpy``, or a name that the script
    registered. ``findings``: the script's calls; those that draw from this generator are named.
    """
    generator_text, call_patterns, advice = _GLOBAL_GENERATORS.get(
        generator_name,
        (f"the generator registered as {generator_name}", (), "make it with a number as its seed"),
    )
    call_lines = tuple(
        call_line
        for call_line in findings.random_calls
        if any(pattern in call_line for pattern in call_patterns)
    )
    location_text = f" (here: {_join_call_lines(call_lines)})" if call_lines else ""
    problem = f"{generator_text} is drawn from{location_text} and was not seeded"
    return f"{problem}: {advice} before the training begins"


_GLOBAL_GENERATORS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "smlaunch.rng.python": ("Python's global generator", (" random.",), "call random.seed(1)"),
    "smlaunch.rng.numpy": (
        "NumPy's global generator",
        (" np.random.", " numpy.random."),
        "call numpy.random.seed(1)",
    ),
    "smlaunch.rng.torch": ("PyTorch's global generator", (" torch.", "Random"), "call torch.manual_seed(1)"),
    "smlaunch.rng.cuda": ("PyTorch's generator on the GPU", (" torch.",), "call torch.manual_seed(1)"),
}
"""By component: its name in words, texts of the calls that draw from it, and advice."""


def explain_file_differences(saved_components: Collection[str], findings: LintFindings) -> Iterator[str]:
    """Yield likely causes of output files that differ after a resume, although the training itself shows no
    difference.

    ``saved_components``: names of the state that the script registers with the Checkpointer; empty for a
    script without one. ``findings``: calls in the script that may break an exact resume.
    """
    if saved_components:
        # A scheduler or a scaler, for example, that the script uses and does not register.
        yield from _explain_unregistered_components(saved_components, findings)
        yield (
            "samples, losses and registered state are the same, but the saved files are not: the script "
            "saves a state that is not registered with the Checkpointer (a moving average, buffers, the best "
            "value so far, a history), or wrote it in a job before the last one. Registered are "
            f"{_join_component_names(saved_components)}"
        )
        return
    yield (
        "the script does not use smlaunch.train, so that only its files can be compared: state that it does "
        "not save itself (order of samples, optimizer, scheduler, random state) starts again after a restart"
    )
    if findings.schedulers:
        yield f"it has a schedule that must be saved: {_join_call_lines(findings.schedulers)}"
    if findings.random_calls:
        yield f"it draws from global generators: {_join_call_lines(findings.random_calls)}"


def explain_not_repeatable(difference: str) -> str:
    return (
        f"two unsplit runs differ already ({difference}): the script is not repeatable even without a cut, "
        "so that its resume cannot be checked. Set all seeds, and try "
        "--deterministic; write a time or an id to a file of its own instead of a file of weights"
    )


def _join_component_names(component_names: Collection[str]) -> str:
    return ", ".join(sorted(component_names)) or "no components"


def _join_call_lines(call_lines: tuple[str, ...]) -> str:
    hidden_count = len(call_lines) - _MAX_SHOWN_LINES
    return ", ".join(call_lines[:_MAX_SHOWN_LINES]) + (
        f" and {hidden_count} more" if hidden_count > 0 else ""
    )
