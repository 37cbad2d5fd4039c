"""What verify-resume reports about two runs, from traces written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.verify import step_traces
from smlaunch.verify.archive_contents import ArtifactFile
from smlaunch.verify.array_digests import ValueDigest
from smlaunch.verify.repeatability import TimeSpan, discount_unrepeatable, is_repeatable
from smlaunch.verify.run_diff import Comparison, compare_runs, describe_file_difference
from smlaunch.verify.run_pair import RunDifference, RunRecord
from smlaunch.verify.script_lint import LintFindings, lint_script
from smlaunch.verify.step_traces import RankTrace, TracedState, TracedStep

STEPS = 6
STATE_DIGESTS = {"model": "m", "optimizer": "o", "order": "p", "smlaunch.rng.torch": "r"}
NOW = 1_800_000_000.0
SPAN = TimeSpan(NOW, NOW + 60)


def file(
    digest: str = "x", text: str = "", *, bulk: bool = True, lines: tuple[str, ...] | None = None
) -> ArtifactFile:
    return ArtifactFile({"": ValueDigest(digest, bulk, text)}, lines)


def account(
    cut_after: int | None = None,
    *,
    digests: dict[str, str] | None = None,
    files: dict[str, ArtifactFile] | None = None,
    entered_digests: dict[str, str] | None = None,
    drawn_names: tuple[str, ...] = (),
) -> RunRecord:
    rows = []
    for step in range(1, STEPS + 1):
        job = 0 if cut_after is None or step <= cut_after else 1
        rows.append(TracedStep(job, step, (2 * step, 2 * step + 1), str(1 / step)))
    entered_digests = {"smlaunch.rng.torch": "e"} if entered_digests is None else entered_digests
    states = [TracedState(STEPS, digests or STATE_DIGESTS)]
    trace = RankTrace(rows, states, entered_digests, set(drawn_names), set(entered_digests))
    files = {"model/model.pt": file()} if files is None else files
    return RunRecord(("a",) if cut_after is None else ("a", "b"), {0: trace}, files)


def run_with_changed_step(step: int, **values: object) -> RunRecord:
    """Returns a run cut after step 3, with one step that differs."""
    cut = account(3)
    rows = cut.trace_by_rank[0].steps
    rows[step - 1] = rows[step - 1]._replace(**values)
    return cut


def plain_run(
    *files: tuple[str, ArtifactFile], earlier: tuple[dict[str, ArtifactFile] | None, ...] = ()
) -> RunRecord:
    """Returns a run of a script without smlaunch.train."""
    return RunRecord(("a",), {}, dict(files), earlier)


def test_equal_runs_have_no_difference() -> None:
    assert compare_runs(account(), account(3), LintFindings()).is_identical


def test_a_repeated_step_is_compared_too() -> None:
    cut = account(3)
    cut.trace_by_rank[0].steps.insert(3, TracedStep(1, 3, (6, 7), "0.25"))
    verdict = compare_runs(account(), cut, LintFindings())
    assert "step 3 on rank 0, the first one after cut 1 had loss 0.25" in verdict.difference_texts[0]


def test_different_samples_are_found() -> None:
    verdict = compare_runs(
        account(),
        run_with_changed_step(4, sample_numbers=(0, 1)),
        LintFindings(data_loaders=("t.py:3 DataLoader",)),
    )
    assert verdict.difference_texts[0].endswith("used samples [0, 1] in place of [8, 9]")
    assert "t.py:3 DataLoader" in verdict.causes[0]


def test_a_wrong_first_step_after_a_cut() -> None:
    verdict = compare_runs(
        account(), run_with_changed_step(4, loss="9.0"), LintFindings(random_calls=("t.py:7 random.random",))
    )
    assert "random numbers of augmentation or dropout" in verdict.causes[0]
    assert "t.py:7 random.random" in verdict.causes[0]


def test_a_wrong_later_step() -> None:
    hints = LintFindings(schedulers=("t.py:5 StepLR",), uses_torch=True)
    verdict = compare_runs(account(), run_with_changed_step(5, loss="9.0"), hints)
    assert verdict.causes == (
        "the state of the scheduler is not saved: t.py:5 StepLR starts again after a restart. Pass it to the "
        "Checkpointer as scheduler=",
    )
    (unknown,) = compare_runs(account(), run_with_changed_step(5, loss="9.0"), LintFindings()).causes
    assert "Saved are model, optimizer, order, smlaunch.rng.torch" in unknown


def test_only_the_final_state_differs() -> None:
    verdict = compare_runs(account(), account(3, digests={**STATE_DIGESTS, "ema": "e"}), LintFindings())
    assert verdict.difference_texts == ["final states that differ: ema"]
    assert "check its load_state_dict()" in verdict.causes[0]


def test_a_loop_with_its_own_count() -> None:
    longer = account(3)
    longer.trace_by_rank[0].steps.append(TracedStep(1, STEPS + 1, (0, 1), "0.1"))
    assert (
        "step 7 was done, and is not in the unsplit run"
        in compare_runs(account(), longer, LintFindings()).difference_texts[0]
    )
    shorter = account(3)
    del shorter.trace_by_rank[0].steps[-1]
    assert "step 6 was skipped" in compare_runs(account(), shorter, LintFindings()).difference_texts[0]


def test_a_step_is_compared_by_how_its_loss_reads() -> None:
    first, other = account(), account(3)
    for trace in (first.trace_by_rank[0], other.trace_by_rank[0]):
        trace.steps[:] = [row._replace(loss=repr(float("nan"))) for row in trace.steps]
    assert compare_runs(first, other, LintFindings()).is_identical


def test_a_file_that_differs_is_a_difference_although_the_state_is_the_same() -> None:
    verdict = compare_runs(account(), account(3, files={"model/model.pt": file("y")}), LintFindings())
    assert verdict.difference_texts == ["model/model.pt differs"]
    assert "saves a state that is not registered" in verdict.causes[0]


def test_a_file_that_is_missing_or_too_many() -> None:
    first, other = plain_run(("model/w", file())), plain_run(("model/v", file()))
    assert compare_runs(first, other, LintFindings()).difference_texts == [
        "model/v exists only after cuts",
        "model/w is missing after cuts",
    ]


def test_a_state_that_differs_only_at_a_checkpoint() -> None:
    first, other = account(), account(3)
    for number, each in enumerate((first, other)):
        each.trace_by_rank[0].states.insert(
            0, TracedState(2, {**STATE_DIGESTS, "ema": str(number)}, is_final=False)
        )
    assert compare_runs(first, other, LintFindings()).difference_texts == [
        "final states that differ: ema (after step 2, but not at the end)"
    ]


def test_the_scope_lists_what_was_compared() -> None:
    comparison = compare_runs(account(), account(3), LintFindings())
    assert comparison.compared_items == (
        "samples of 6 steps",
        "losses of 6 steps",
        "final state: model, optimizer, order, smlaunch.rng.torch",
        "model/model.pt",
    )
    bare, other = account(files={}), account(3, files={})
    for each in (bare, other):
        trace = each.trace_by_rank[0]
        trace.steps[:] = [row._replace(sample_numbers=(), loss=None) for row in trace.steps]
        trace.states.clear()
    verdict = compare_runs(bare, other, LintFindings())
    assert verdict.is_identical
    assert verdict.compared_items == ()
    assert [text.partition(":")[0] for text in verdict.not_compared_items] == [
        *("samples", "losses", "state of rank 0", "model", "output/data")
    ]


@pytest.mark.parametrize(("drawn_names", "identical"), [((), True), (("smlaunch.rng.numpy",), False)])
def test_a_generator_without_a_seed_matters_if_it_is_drawn_from(
    drawn_names: tuple[str, ...], identical: bool
) -> None:
    first, other = (
        account(
            cut,
            digests={**STATE_DIGESTS, "smlaunch.rng.numpy": where_cut},
            entered_digests={"smlaunch.rng.numpy": where_cut},
            drawn_names=drawn_names,
        )
        for cut, where_cut in ((None, "here"), (3, "there"))
    )
    hints = LintFindings(random_calls=("t.py:3 random.random", "t.py:7 np.random.rand"))
    verdict = compare_runs(first, other, hints)
    assert verdict.is_identical is identical
    if identical:
        assert verdict.not_compared_items[-1] == "smlaunch.rng.numpy: no random numbers were drawn from it"
    else:
        (cause,) = verdict.causes
        assert (
            "NumPy's global generator is drawn from (here: t.py:7 np.random.rand) and was not seeded" in cause
        )


def test_a_seeded_generator_with_another_state_differs() -> None:
    cut = account(
        3, digests={**STATE_DIGESTS, "smlaunch.rng.torch": "elsewhere"}, drawn_names=("smlaunch.rng.torch",)
    )
    assert "script draws at every start" in compare_runs(account(), cut, LintFindings()).causes[0]


LOG = "output/data/log.csv"


@pytest.mark.parametrize(
    ("earlier", "last", "explanation"),
    [
        ((("1", "2", "3"),), ("3", "4"), "it is in pieces"),
        ((("1", "2", "to"),), ("3", "4"), "it is in pieces"),
        ((None,), ("3", "4"), "the lines of failed jobs"),
        ((("1", "2"),), ("4", "5"), None),
        ((("1", "2"),), ("4",), None),
    ],
)
def test_a_log_in_pieces(
    earlier: tuple[tuple[str, ...] | None, ...], last: tuple[str, ...], explanation: str | None
) -> None:
    earlier_files = tuple(None if lines is None else {LOG: file("b", lines=lines)} for lines in earlier)
    cut = plain_run((LOG, file("c", lines=last)), earlier=earlier_files)
    verdict = compare_runs(plain_run((LOG, file("a", lines=("1", "2", "3", "4")))), cut, LintFindings())
    assert verdict.is_identical is (explanation is not None)
    if explanation is not None:
        assert explanation in verdict.not_compared_items[-1]


def test_the_model_is_the_last_job_s_alone() -> None:
    cut = plain_run(("model/b", file()), earlier=({"model/a": file()},))
    verdict = compare_runs(plain_run(("model/a", file()), ("model/b", file())), cut, LintFindings())
    assert verdict.difference_texts == ["model/a is missing after cuts"]


# ---- judged by two unsplit runs --------------------------------------------------------------------------


def judge(first: RunRecord, cut: RunRecord, repeated: RunRecord) -> tuple[Comparison, bool]:
    repetition = compare_runs(first, repeated, LintFindings())
    return discount_unrepeatable(compare_runs(first, cut, LintFindings()), repetition, SPAN), is_repeatable(
        repetition, SPAN
    )


def file_beside_weights(text: str, key: str = "at") -> tuple[str, ArtifactFile]:
    return "model/card.json", ArtifactFile(
        {key: ValueDigest(text, is_weight_like=False, short_value_text=text)}
    )


def test_an_unrepeatable_value_beside_the_weights_is_discounted() -> None:
    runs = [plain_run(("model/w.npz", file()), file_beside_weights(text)) for text in ("3.1", "0.4", "3.2")]
    verdict, repeated = judge(*runs)
    assert verdict.is_identical
    assert repeated
    (message,) = [text for text in verdict.not_compared_items if "card.json" in text]
    assert message.startswith(
        "model/card.json differs in at ('0.4' in place of '3.1'), as it does between two"
    )


@pytest.mark.parametrize(
    ("texts", "identical"),
    [
        ((str(NOW + 1), str(NOW + 20), str(NOW + 40)), True),
        ((str(int(NOW * 1000)), str(int(NOW * 1000) + 1), str(int(NOW * 1000) + 2)), True),
        (("2027-01-15 08:00:01", "2027-01-15T08:00:02Z", "2027-01-15 08:00:03"), True),
        (("0.123", "0.124", "0.125"), False),
        ((str(NOW + 1), "0.124", "0.125"), False),
    ],
)
def test_a_number_alone_may_be_a_weight_unless_it_is_a_time(texts: tuple[str, ...], identical: bool) -> None:
    verdict, repeated = judge(*(plain_run(file_beside_weights(text)) for text in texts))
    assert verdict.is_identical is identical
    assert repeated is identical


def test_unrepeatable_weights_are_not_blamed_on_the_resume() -> None:
    verdict, repeated = judge(*(plain_run(("model/w.npz", file(digest))) for digest in "abc"))
    assert not verdict.is_identical
    assert not repeated
    assert "two unsplit runs differ already (model/w.npz differs)" in verdict.causes[0]


def test_differences_after_cuts_stand_beside_unrepeatable_ones() -> None:
    runs = [
        plain_run(("model/w.npz", file(digest)), file_beside_weights(step))
        for digest, step in (("a", "1"), ("b", "2"), ("a", "3"))
    ]
    verdict, repeated = judge(*runs)
    assert repeated
    assert verdict.difference_texts == ["model/w.npz differs"]


def test_files_with_a_time_in_their_name() -> None:
    def run(number: int) -> RunRecord:
        events = (f"output/data/events.out.tfevents.18000000{number}.host", file(str(number), bulk=False))
        return plain_run(("model/w.npz", file()), events)

    verdict, repeated = judge(run(11), run(22), run(33))
    assert verdict.is_identical
    assert repeated
    assert len([text for text in verdict.not_compared_items if "tfevents" in text]) == 2


def test_traces_are_read_in_the_order_of_jobs(tmp_path: Path) -> None:
    rows = {
        "s1": [
            {"step": 0, "entered": {"smlaunch.rng.python": "a"}},
            {"step": 1, "samples": [4], "loss": 0.5},
            {"step": 1, "digests": {"model": "x"}, "drawn": ["smlaunch.rng.numpy"]},
        ],
        "s2": [
            {"step": 1, "entered": {"smlaunch.rng.python": "b"}},
            {"step": 2, "samples": [5]},
            {"step": 2, "closing": {"model": "y"}},
            {"step": 2, "digests": {"model": "z"}},
        ],
    }
    for job, lines in rows.items():
        (tmp_path / f"{job}-rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (tmp_path / "s1-rank0.jsonl").open("a") as file:
        file.write('{"step": 9, "sam')  # the process was killed
    (trace,) = step_traces.read_traces(tmp_path, ["s1", "s2"]).values()
    assert trace.steps == [TracedStep(0, 1, (4,), "0.5"), TracedStep(1, 2, (5,), None)]
    assert trace.final_digest_by_component == {"model": "y"}
    assert trace.initial_digest_by_generator == {"smlaunch.rng.python": "a"}
    assert (trace.drawn_generator_names, trace.generator_names) == (
        {"smlaunch.rng.numpy"},
        {"smlaunch.rng.python", "smlaunch.rng.numpy"},
    )
    assert step_traces.last_traced_step(tmp_path, "s2") == 2
    assert step_traces.last_traced_step(tmp_path, "s3") == 0


def test_hints_name_lines() -> None:
    text = """
import torch
def augment(image):
    return image + torch.randn(3)
def right(image, own):
    return image + torch.randn(3, generator=own)
schedule = torch.optim.lr_scheduler.StepLR(None, 3)
"""
    hints = lint_script(text, "t.py")
    assert hints.random_calls == ("t.py:4 torch.randn",)
    assert hints.schedulers == ("t.py:7 torch.optim.lr_scheduler.StepLR",)
    assert hints.uses_torch
    assert lint_script("def (", "t.py") == LintFindings()


@pytest.mark.parametrize(
    ("count", "end"), [(8, "differs in v0, v1, v2, v3, v4, v5, v6, v7"), (9, "v7 and 1 more")]
)
def test_a_file_names_its_first_differing_values(count: int, end: str) -> None:
    differences = [RunDifference("file", "a.pt", f"v{number}") for number in range(count)]
    assert describe_file_difference("a.pt", differences).endswith(end)
