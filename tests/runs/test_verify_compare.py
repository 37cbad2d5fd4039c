"""What verify-resume says about two runs, from traces written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.runs.verify import traces
from smlaunch.runs.verify.artefacts import File
from smlaunch.runs.verify.compare import Account, Verdict, compare
from smlaunch.runs.verify.contents import Leaf
from smlaunch.runs.verify.hints import Hints, look
from smlaunch.runs.verify.repetition import Span, judge, repeats
from smlaunch.runs.verify.traces import RankTrace, StateSeen, StepSeen

STEPS = 6
KEPT = {"model": "m", "optimizer": "o", "order": "p", "smlaunch.rng.torch": "r"}
NOW = 1_800_000_000.0
SPAN = Span(NOW, NOW + 60)


def file(
    digest: str = "x", text: str = "", *, bulk: bool = True, lines: tuple[str, ...] | None = None
) -> File:
    return File({"": Leaf(digest, bulk, text)}, lines)


def account(
    cut_after: int | None = None,
    *,
    digests: dict[str, str] | None = None,
    files: dict[str, File] | None = None,
    entered: dict[str, str] | None = None,
    drawn: tuple[str, ...] = (),
) -> Account:
    rows = []
    for step in range(1, STEPS + 1):
        job = 0 if cut_after is None or step <= cut_after else 1
        rows.append(StepSeen(job, step, (2 * step, 2 * step + 1), str(1 / step)))
    entered = {"smlaunch.rng.torch": "e"} if entered is None else entered
    states = [StateSeen(STEPS, digests or KEPT)]
    trace = RankTrace(rows, states, entered, set(drawn), set(entered))
    files = {"model/model.pt": file()} if files is None else files
    return Account(("a",) if cut_after is None else ("a", "b"), {0: trace}, files)


def changed(step: int, **values: object) -> Account:
    """Cut after step 3, with one step that went another way."""
    cut = account(3)
    rows = cut.ranks[0].steps
    rows[step - 1] = rows[step - 1]._replace(**values)
    return cut


def plain(*files: tuple[str, File], earlier: tuple[dict[str, File] | None, ...] = ()) -> Account:
    """Of a script without smlaunch.train."""
    return Account(("a",), {}, dict(files), earlier)


def test_the_same() -> None:
    assert compare(account(), account(3), Hints()).identical


def test_a_step_done_twice_counts_too() -> None:
    cut = account(3)
    cut.ranks[0].steps.insert(3, StepSeen(1, 3, (6, 7), "0.25"))
    verdict = compare(account(), cut, Hints())
    assert "step 3 on rank 0, the first one after cut 1 had loss 0.25" in verdict.differences[0]


def test_samples() -> None:
    verdict = compare(account(), changed(4, samples=(0, 1)), Hints(loaders=("t.py:3 DataLoader",)))
    assert verdict.differences[0].endswith("used samples [0, 1] in place of [8, 9]")
    assert "t.py:3 DataLoader" in verdict.causes[0]


def test_the_first_step_after_a_cut() -> None:
    verdict = compare(account(), changed(4, loss="9.0"), Hints(random=("t.py:7 random.random",)))
    assert "random numbers of augmentation or dropout" in verdict.causes[0]
    assert "t.py:7 random.random" in verdict.causes[0]


def test_a_later_step() -> None:
    hints = Hints(schedulers=("t.py:5 StepLR",), uses_torch=True)
    verdict = compare(account(), changed(5, loss="9.0"), hints)
    assert verdict.causes == (
        "the state of the scheduler is not kept: t.py:5 StepLR begins anew after a restart. Hand it to the "
        "Checkpointer as scheduler=",
    )
    (unknown,) = compare(account(), changed(5, loss="9.0"), Hints()).causes
    assert "Kept are model, optimizer, order, smlaunch.rng.torch" in unknown


def test_only_the_state_in_the_end() -> None:
    verdict = compare(account(), account(3, digests={**KEPT, "ema": "e"}), Hints())
    assert verdict.differences == ["in the end differ: ema"]
    assert "check its load_state_dict()" in verdict.causes[0]


def test_a_loop_that_counts_by_itself() -> None:
    longer = account(3)
    longer.ranks[0].steps.append(StepSeen(1, STEPS + 1, (0, 1), "0.1"))
    assert (
        "step 7 was done, and is not in the unsplit run" in compare(account(), longer, Hints()).differences[0]
    )
    shorter = account(3)
    del shorter.ranks[0].steps[-1]
    assert "step 6 was done by nobody" in compare(account(), shorter, Hints()).differences[0]


def test_a_step_is_compared_by_how_its_loss_reads() -> None:
    one, other = account(), account(3)
    for trace in (one.ranks[0], other.ranks[0]):
        trace.steps[:] = [row._replace(loss=repr(float("nan"))) for row in trace.steps]
    assert compare(one, other, Hints()).identical


def test_a_file_that_differs_is_a_difference_although_the_state_is_the_same() -> None:
    verdict = compare(account(), account(3, files={"model/model.pt": file("y")}), Hints())
    assert verdict.differences == ["model/model.pt differs"]
    assert "saves something that is not registered" in verdict.causes[0]


def test_a_file_that_is_missing_or_too_many() -> None:
    one, other = plain(("model/w", file())), plain(("model/v", file()))
    assert compare(one, other, Hints()).differences == [
        "model/v is there only after cuts",
        "model/w is missing after cuts",
    ]


def test_a_state_that_differs_on_the_way_and_no_more_in_the_end() -> None:
    one, other = account(), account(3)
    for number, each in enumerate((one, other)):
        each.ranks[0].states.insert(0, StateSeen(2, {**KEPT, "ema": str(number)}, closing=False))
    assert compare(one, other, Hints()).differences == [
        "in the end differ: ema (after step 2, no more in the end)"
    ]


def test_only_what_was_compared_is_said_to_be() -> None:
    whole = compare(account(), account(3), Hints())
    assert whole.compared == (
        "samples of 6 steps",
        "losses of 6 steps",
        "state in the end: model, optimizer, order, smlaunch.rng.torch",
        "model/model.pt",
    )
    bare, other = account(files={}), account(3, files={})
    for each in (bare, other):
        trace = each.ranks[0]
        trace.steps[:] = [row._replace(samples=(), loss=None) for row in trace.steps]
        trace.states.clear()
    verdict = compare(bare, other, Hints())
    assert verdict.identical
    assert verdict.compared == ()
    assert [left.partition(":")[0] for left in verdict.not_compared] == [
        *("samples", "losses", "state of rank 0", "model", "output/data")
    ]


@pytest.mark.parametrize(("drawn", "identical"), [((), True), (("smlaunch.rng.numpy",), False)])
def test_a_generator_without_a_seed_matters_if_it_is_drawn_from(
    drawn: tuple[str, ...], identical: bool
) -> None:
    one, other = (
        account(
            cut,
            digests={**KEPT, "smlaunch.rng.numpy": where},
            entered={"smlaunch.rng.numpy": where},
            drawn=drawn,
        )
        for cut, where in ((None, "here"), (3, "there"))
    )
    hints = Hints(random=("t.py:3 random.random", "t.py:7 np.random.rand"))
    verdict = compare(one, other, hints)
    assert verdict.identical is identical
    if identical:
        assert verdict.not_compared[-1] == "smlaunch.rng.numpy: nothing has drawn from it"
    else:
        (cause,) = verdict.causes
        assert (
            "NumPy's global generator is drawn from (here: t.py:7 np.random.rand) and was not seeded" in cause
        )


def test_a_seeded_generator_that_stands_elsewhere_is_a_difference() -> None:
    cut = account(3, digests={**KEPT, "smlaunch.rng.torch": "elsewhere"}, drawn=("smlaunch.rng.torch",))
    assert "something draws at every start" in compare(account(), cut, Hints()).causes[0]


LOG = "output/data/log.csv"


@pytest.mark.parametrize(
    ("earlier", "last", "told"),
    [
        ((("1", "2", "3"),), ("3", "4"), "it is in pieces"),
        ((("1", "2", "to"),), ("3", "4"), "it is in pieces"),
        ((None,), ("3", "4"), "the lines of jobs that failed"),
        ((("1", "2"),), ("4", "5"), None),
        ((("1", "2"),), ("4",), None),
    ],
)
def test_a_log_in_pieces(
    earlier: tuple[tuple[str, ...] | None, ...], last: tuple[str, ...], told: str | None
) -> None:
    before = tuple(None if lines is None else {LOG: file("b", lines=lines)} for lines in earlier)
    cut = plain((LOG, file("c", lines=last)), earlier=before)
    verdict = compare(plain((LOG, file("a", lines=("1", "2", "3", "4")))), cut, Hints())
    assert verdict.identical is (told is not None)
    if told is not None:
        assert told in verdict.not_compared[-1]


def test_the_model_is_the_last_job_s_alone() -> None:
    cut = plain(("model/b", file()), earlier=({"model/a": file()},))
    verdict = compare(plain(("model/a", file()), ("model/b", file())), cut, Hints())
    assert verdict.differences == ["model/a is missing after cuts"]


# ---- judged by two unsplit runs --------------------------------------------------------------------------


def judged(one: Account, cut: Account, again: Account) -> tuple[Verdict, bool]:
    repetition = compare(one, again, Hints())
    return judge(compare(one, cut, Hints()), repetition, SPAN), repeats(repetition, SPAN)


def beside(text: str, place: str = "at") -> tuple[str, File]:
    return "model/card.json", File({place: Leaf(text, bulk=False, text=text)})


def test_a_value_beside_the_weights_that_no_two_runs_have_in_common_is_left_out_and_told() -> None:
    runs = [plain(("model/w.npz", file()), beside(text)) for text in ("3.1", "0.4", "3.2")]
    verdict, repeated = judged(*runs)
    assert verdict.identical
    assert repeated
    (told,) = [left for left in verdict.not_compared if "card.json" in left]
    assert told.startswith("model/card.json differs in at ('0.4' in place of '3.1'), as it does between two")


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
    verdict, repeated = judged(*(plain(beside(text)) for text in texts))
    assert verdict.identical is identical
    assert repeated is identical


def test_weights_that_do_not_repeat_themselves_are_no_proof_and_not_the_resume_s_fault() -> None:
    verdict, repeated = judged(*(plain(("model/w.npz", file(digest))) for digest in "abc"))
    assert not verdict.identical
    assert not repeated
    assert "two unsplit runs differ already (model/w.npz differs)" in verdict.causes[0]


def test_what_differs_only_after_cuts_is_told_beside_what_always_does() -> None:
    runs = [
        plain(("model/w.npz", file(digest)), beside(at))
        for digest, at in (("a", "1"), ("b", "2"), ("a", "3"))
    ]
    verdict, repeated = judged(*runs)
    assert repeated
    assert verdict.differences == ["model/w.npz differs"]


def test_files_with_a_time_in_their_name() -> None:
    def run(number: int) -> Account:
        events = (f"output/data/events.out.tfevents.18000000{number}.host", file(str(number), bulk=False))
        return plain(("model/w.npz", file()), events)

    verdict, repeated = judged(run(11), run(22), run(33))
    assert verdict.identical
    assert repeated
    assert len([left for left in verdict.not_compared if "tfevents" in left]) == 2


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
    (trace,) = traces.read(tmp_path, ["s1", "s2"]).values()
    assert trace.steps == [StepSeen(0, 1, (4,), "0.5"), StepSeen(1, 2, (5,), None)]
    assert trace.final == {"model": "y"}
    assert trace.entered == {"smlaunch.rng.python": "a"}
    assert (trace.drawn, trace.generators) == (
        {"smlaunch.rng.numpy"},
        {"smlaunch.rng.python", "smlaunch.rng.numpy"},
    )
    assert traces.newest_step(tmp_path, "s2") == 2
    assert traces.newest_step(tmp_path, "s3") == 0


def test_hints_name_lines() -> None:
    text = """
import torch
def augment(image):
    return image + torch.randn(3)
def right(image, own):
    return image + torch.randn(3, generator=own)
schedule = torch.optim.lr_scheduler.StepLR(None, 3)
"""
    hints = look(text, "t.py")
    assert hints.random == ("t.py:4 torch.randn",)
    assert hints.schedulers == ("t.py:7 torch.optim.lr_scheduler.StepLR",)
    assert hints.uses_torch
    assert look("def (", "t.py") == Hints()
