"""How to read data: the rules of size, small files, and what the times rest on."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.catalog import storage
from smlaunch.catalog.instances import find, known_types
from smlaunch.planning.advice import Advice, Needs, advise
from smlaunch.planning.advice_text import as_text
from smlaunch.planning.census import TABLES, Census, DataFacts
from smlaunch.planning.io_times import Machine, Range, Share
from smlaunch.planning.surroundings import InputFacts
from tests.planning.world import local, plan, region, with_inputs

GB = 10**9
LARGE_FILES = 200_000_000


def data(size: int, each: int = LARGE_FILES) -> DataFacts:
    return DataFacts(max(1, size // each), size)


def verdicts(advice: Advice) -> dict[str, str]:
    return {way.name: way.verdict for way in advice.ways}


G5 = find("ml.g5.12xlarge")  # 192 GiB, 3.8 TB of NVMe
SMALL = find("ml.m5.large")  # 8 GiB, a volume
TINY_DISK = find("ml.g4dn.xlarge")  # 125 GB of NVMe


@pytest.mark.parametrize(
    ("facts", "needs", "machine", "taken"),
    [
        (data(8 * GB), Needs(), Machine(G5), "memory"),
        (data(8 * GB), Needs(), Machine(), "memory"),
        (data(8 * GB), Needs(), Machine(SMALL), "File"),
        (data(12 * GB), Needs(), Machine(G5), "File"),
        (data(90 * GB), Needs(), Machine(G5), "File"),
        (data(90 * GB), Needs(epochs=1), Machine(G5), "FastFile"),
        (data(90 * GB), Needs(epochs=1, random=True), Machine(G5), "File"),
        (data(900 * GB), Needs(), Machine(G5), "FastFile"),
        (data(900 * GB), Needs(random=True), Machine(G5), "File"),
        (data(900 * GB), Needs(random=True), Machine(SMALL), "FSx for Lustre"),
        (data(900 * GB), Needs(epochs=1, random=True), Machine(SMALL), "S3 Express One Zone"),
        (data(900 * GB), Needs(random=True), Machine(TINY_DISK), "FSx for Lustre"),
        # A part for each host is what counts.
        (data(900 * GB), Needs(split=True), Machine(G5, hosts=10), "File"),
        (data(900 * GB), Needs(split=True), Machine(G5, hosts=100), "memory"),
        (data(900 * GB), Needs(), Machine(G5, hosts=100), "FastFile"),
        (data(900 * GB), Needs(place="processing"), Machine(G5), "File"),
        (data(9000 * GB), Needs(place="processing"), Machine(G5), "Pipe"),
        (data(8 * GB), Needs(place="slurm"), Machine(), "memory"),
        (data(90 * GB), Needs(place="slurm"), Machine(), "$SLURM_TMPDIR"),
        (data(900 * GB), Needs(place="slurm"), Machine(), "shared storage"),
    ],
)
def test_the_rules_of_size(facts: DataFacts, needs: Needs, machine: Machine, taken: str) -> None:
    advice = advise(facts, needs, machine)
    assert advice.taken.name == taken
    assert advice.reasons


def test_many_small_files_go_into_archives_first() -> None:
    small = data(60 * GB, each=100_000)
    advice = advise(small, Needs(epochs=3), Machine(G5))
    assert advice.pack
    assert verdicts(advice)["shards"] == "first"
    assert advice.mode == "File"
    alone = Machine(G5).download(Share(small.bytes, small.files))
    assert advice.taken.before is not None
    assert advice.taken.before.high < alone.high / 10
    text = as_text(advice, "s3://b/it's mine/")
    assert """smlaunch data pack 's3://b/it'"'"'s mine/' s3://BUCKET/packed/ --shard-size 150MB""" in text
    assert "--input train=s3://BUCKET/packed/,mode=File" in text


@pytest.mark.parametrize("facts", [data(60 * GB), data(4000, each=100), data(2 * GB, each=2 * GB)])
def test_large_or_few_files_stay_as_they_are(facts: DataFacts) -> None:
    assert not advise(facts, Needs(), Machine(G5)).pack


def test_on_slurm_the_archive_is_unpacked_on_the_nodes_own_disk() -> None:
    advice = advise(data(60 * GB, each=100_000), Needs(place="slurm"), Machine())
    assert advice.pack
    assert advice.mode is None
    text = as_text(advice, "/project/data")
    assert 'tar -xf "$shard" -C "$SLURM_TMPDIR/data"' in text
    assert "full of other users' files" in text
    assert "one large chunk" in as_text(advise(data(900 * GB), Needs(place="slurm"), Machine()), "/project")


def test_tables_at_scale_are_prepared_once() -> None:
    tables = DataFacts(1000, 400 * GB, tables=300 * GB)
    assert verdicts(advise(tables, Needs(), Machine(G5)))["EMR, Glue or Spark"] == "first"
    for few in (DataFacts(1000, 400 * GB, tables=GB), DataFacts(100, 40 * GB, tables=40 * GB)):
        assert verdicts(advise(few, Needs(), Machine(G5)))["EMR, Glue or Spark"] == "poor"


def test_the_volumes_speed_bounds_a_download_and_the_disks_size_a_copy() -> None:
    share = Share(100 * GB, 500)
    assert Machine(find("ml.m5.24xlarge")).download(share).low >= 100 * GB / 2.62e8 * 0.999
    assert Machine(find("ml.p4d.24xlarge")).download(share).low < 100 * GB / 1e9
    assert verdicts(advise(data(900 * GB), Needs(), Machine(TINY_DISK)))["File"] == "cannot"


def test_the_documented_download_is_within_the_range() -> None:
    """50 GB in 100 MB files take about 5 minutes (AWS)."""
    for instance in (None, G5):
        span = Machine(instance).download(Share(50 * GB, 500))
        assert span.low <= 300 <= span.high * 1.01 + 80


_DATA = st.builds(
    lambda files, mean: DataFacts(files, files * mean), st.integers(1, 10**9), st.integers(0, 10**10)
)
_NEEDS = st.builds(
    Needs,
    st.none() | st.integers(1, 1000),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["training", "processing", "slurm"]),
)
_MACHINES = st.builds(
    Machine, st.none() | st.sampled_from(sorted(known_types().values())), st.integers(1, 2000)
)


@settings(max_examples=150, deadline=None)
@given(_DATA, _NEEDS, _MACHINES)
def test_one_way_is_taken_whatever_the_data(facts: DataFacts, needs: Needs, machine: Machine) -> None:
    advice = advise(facts, needs, machine)
    assert [way.verdict for way in advice.ways].count("take") == 1
    for way in advice.ways:
        for span in (way.before, way.first_epoch, way.epoch, way.total(needs.epochs or 2)):
            assert span is None or 0 <= span.low <= span.high
    if advice.taken.name == "File":
        assert advice.share.bytes <= machine.disk_bytes
    if needs.place == "processing":
        assert advice.mode in ("File", "Pipe")
    if advice.taken.name == "memory" and machine.memory is not None and needs.place != "slurm":
        assert advice.share.bytes <= machine.memory
    document, text = advice.to_dict(), as_text(advice, "s3://b/\x1b[31m/")
    assert document["take"] == advice.taken.name
    assert "\x1b" not in text


@given(_DATA, _MACHINES, st.integers(2, 50))
@settings(max_examples=50, deadline=None)
def test_more_data_never_takes_less_time(facts: DataFacts, machine: Machine, more: int) -> None:
    share = Share(facts.bytes, facts.files)
    larger = Share(facts.bytes * more, facts.files * more)
    for way in (machine.download, machine.from_disk, machine.from_memory):
        assert way(share).high <= way(larger).high * 1.0001
        assert way(share).low <= way(larger).low * 1.0001


def test_every_figure_says_where_it_comes_from() -> None:
    for row in storage.figures().values():
        assert row.kind in ("documented", "measured", "assumed")
        assert row.source
        assert row.what
        assert 0 < row.low <= row.high
    advice = advise(data(60 * GB), Needs(), Machine(G5))
    assert all(row.what in as_text(advice, "x").replace("\n    ", " ") for row in advice.assumed)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0, 0, "none"),
        (0, 0.4, "under 1 s"),
        (25, 300, "25 s to 5 min"),
        (120, 600, "2 to 10 min"),
        (7200, 7200, "about 2 h"),
        (0.2, 3, "<1 to 3 s"),
    ],
)
def test_times_in_words(low: float, high: float, text: str) -> None:
    assert str(Range(low, high)) == text


def test_a_census() -> None:
    count = Census()
    sizes = [0, 1, 3, 4, 100, 60_000_000]
    for number, size in enumerate(sizes):
        count.add(f"a/{number}.csv.gz" if number == 4 else f"a/{number}.jpg", size)
    facts = count.facts()
    assert (facts.files, facts.bytes, facts.largest) == (6, sum(sizes), 60_000_000)
    assert (facts.small, facts.tables) == (5, 100)
    assert facts.median == 3
    assert re.search(TABLES, "x.JSONL")
    assert not re.search(TABLES, "x.csv.png")


# ---- in a plan -------------------------------------------------------------------------------------------


def _facts(objects: int, size: int, **changes: object) -> InputFacts:
    return dataclasses.replace(InputFacts("s3://b/d/", "s3", objects=objects, bytes=size), **changes)  # type: ignore[arg-type]


def _said(facts: InputFacts, mode: str = "File", **surroundings: object) -> tuple[str, str]:
    """The reason on the channel ``train``, and the warnings."""
    job = {"inputs": {"train": {"uri": "s3://b/d/", "mode": mode}}}
    made = plan(job, with_inputs(region(**surroundings), {"train": facts}))
    reasons = [reason.because for reason in made.reasons if reason.rule == "inputs.train.storage"]
    return "".join(reasons), " ".join(made.warnings)


def test_a_plan_says_how_its_channels_are_best_read() -> None:
    because, warnings = _said(_facts(500, 50 * GB))
    assert because.startswith("Mode File as advised: File (")
    assert "before training" in because
    assert not warnings
    because, _ = _said(_facts(500, 50 * GB), mode="Pipe")
    assert because.startswith("Mode Pipe as the job says; advised for most scripts: File")


def test_a_plan_warns_of_many_small_files() -> None:
    _, warnings = _said(_facts(9_000, GB))
    assert "smlaunch data pack" in warnings
    _, warnings = _said(_facts(10_000, GB, capped=True))
    assert "smlaunch data advise s3://b/d/" in warnings


def test_a_plan_has_nothing_to_say_of_little_data_or_of_this_machine() -> None:
    assert _said(_facts(1000, 10**6)) == ("", "")
    job = {"inputs": {"train": {"uri": "s3://b/d/"}}}
    here = plan(job, with_inputs(local(), {"train": _facts(500, 50 * GB)}))
    assert not any(reason.rule == "inputs.train.storage" for reason in here.reasons)


def test_every_known_type_can_be_advised_for() -> None:
    for instance in known_types().values():
        advice = advise(data(60 * GB), Needs(), Machine(instance))
        assert as_text(advice, "s3://b/")
