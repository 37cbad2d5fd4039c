"""Advice on reading data: the rules of size, small files, and the basis of the times."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.catalog import storage
from smlaunch.catalog.instances import find_instance_type, known_types
from smlaunch.facts.dataset_stats import TABLE_PATTERN, DatasetCounter, DatasetStats
from smlaunch.facts.discovered_facts import InputFacts
from smlaunch.storage.read_time_estimates import DataShare, EstimateRange, HostProfile
from smlaunch.storage.storage_advice import StorageAdvice, advise_storage
from smlaunch.storage.storage_advice_text import as_text
from smlaunch.storage.storage_options import AccessPattern
from tests.planner.fixtures import local, plan, region, with_inputs
from tests.tables import table

GB = 10**9
LARGE_FILES = 200_000_000


def data(size: int, each: int = LARGE_FILES) -> DatasetStats:
    return DatasetStats(max(1, size // each), size)


def verdicts(advice: StorageAdvice) -> dict[str, str]:
    return {way.name: way.verdict for way in advice.options}


G5 = find_instance_type("ml.g5.12xlarge")  # 192 GiB, 3.8 TB of NVMe
SMALL_HOST = find_instance_type("ml.m5.large")  # 8 GiB, a volume
TINY_DISK = find_instance_type("ml.g4dn.xlarge")  # 125 GB of NVMe


@table(
    ("facts", "needs", "machine", "chosen_name"),
    [
        (data(8 * GB), AccessPattern(), HostProfile(G5), "memory"),
        (data(8 * GB), AccessPattern(), HostProfile(), "memory"),
        (data(8 * GB), AccessPattern(), HostProfile(SMALL_HOST), "File"),
        (data(12 * GB), AccessPattern(), HostProfile(G5), "File"),
        (data(90 * GB), AccessPattern(), HostProfile(G5), "File"),
        (data(90 * GB), AccessPattern(epochs=1), HostProfile(G5), "FastFile"),
        (data(90 * GB), AccessPattern(epochs=1, random_access=True), HostProfile(G5), "File"),
        (data(900 * GB), AccessPattern(), HostProfile(G5), "FastFile"),
        (data(900 * GB), AccessPattern(random_access=True), HostProfile(G5), "File"),
        (data(900 * GB), AccessPattern(random_access=True), HostProfile(SMALL_HOST), "FSx for Lustre"),
        (
            data(900 * GB),
            AccessPattern(epochs=1, random_access=True),
            HostProfile(SMALL_HOST),
            "S3 Express One Zone",
        ),
        (data(900 * GB), AccessPattern(random_access=True), HostProfile(TINY_DISK), "FSx for Lustre"),
        # A part for each host is what counts.
        (data(900 * GB), AccessPattern(is_data_split=True), HostProfile(G5, hosts=10), "File"),
        (data(900 * GB), AccessPattern(is_data_split=True), HostProfile(G5, hosts=100), "memory"),
        (data(900 * GB), AccessPattern(), HostProfile(G5, hosts=100), "FastFile"),
        (data(900 * GB), AccessPattern(platform="processing"), HostProfile(G5), "File"),
        (data(9000 * GB), AccessPattern(platform="processing"), HostProfile(G5), "Pipe"),
        (data(8 * GB), AccessPattern(platform="slurm"), HostProfile(), "memory"),
        (data(90 * GB), AccessPattern(platform="slurm"), HostProfile(), "$SLURM_TMPDIR"),
        (data(900 * GB), AccessPattern(platform="slurm"), HostProfile(), "shared storage"),
    ],
)
def test_the_rules_of_size(
    facts: DatasetStats, needs: AccessPattern, machine: HostProfile, chosen_name: str
) -> None:
    advice = advise_storage(facts, needs, machine)
    assert advice.chosen.name == chosen_name
    assert advice.reasons


def test_many_small_files_go_into_archives_first() -> None:
    small = data(60 * GB, each=100_000)
    advice = advise_storage(small, AccessPattern(epochs=3), HostProfile(G5))
    assert advice.pack_first
    assert verdicts(advice)["shards"] == "first"
    assert advice.mode == "File"
    without_archives = HostProfile(G5).download_time(DataShare(small.bytes, small.files))
    assert advice.chosen.startup is not None
    assert advice.chosen.startup.high < without_archives.high / 10
    text = as_text(advice, "s3://b/it's mine/")
    assert """smlaunch data pack 's3://b/it'"'"'s mine/' s3://BUCKET/packed/ --shard-size 150MB""" in text
    assert "--input train=s3://BUCKET/packed/,mode=File" in text


@pytest.mark.parametrize("facts", [data(60 * GB), data(4000, each=100), data(2 * GB, each=2 * GB)])
def test_large_or_few_files_stay_as_they_are(facts: DatasetStats) -> None:
    assert not advise_storage(facts, AccessPattern(), HostProfile(G5)).pack_first


def test_on_slurm_the_archive_is_unpacked_on_the_nodes_own_disk() -> None:
    advice = advise_storage(data(60 * GB, each=100_000), AccessPattern(platform="slurm"), HostProfile())
    assert advice.pack_first
    assert advice.mode is None
    text = as_text(advice, "/project/data")
    assert 'tar -xf "$shard" -C "$SLURM_TMPDIR/data"' in text
    assert "full of other users' files" in text
    assert "one large chunk" in as_text(
        advise_storage(data(900 * GB), AccessPattern(platform="slurm"), HostProfile()), "/project"
    )


def test_tables_at_scale_are_prepared_once() -> None:
    tables = DatasetStats(1000, 400 * GB, table_bytes=300 * GB)
    assert verdicts(advise_storage(tables, AccessPattern(), HostProfile(G5)))["EMR, Glue or Spark"] == "first"
    for few_tables in (
        DatasetStats(1000, 400 * GB, table_bytes=GB),
        DatasetStats(100, 40 * GB, table_bytes=40 * GB),
    ):
        assert (
            verdicts(advise_storage(few_tables, AccessPattern(), HostProfile(G5)))["EMR, Glue or Spark"]
            == "poor"
        )


def test_the_volumes_speed_bounds_a_download_and_the_disks_size_a_copy() -> None:
    share = DataShare(100 * GB, 500)
    assert (
        HostProfile(find_instance_type("ml.m5.24xlarge")).download_time(share).low
        >= 100 * GB / 2.62e8 * 0.999
    )
    assert HostProfile(find_instance_type("ml.p4d.24xlarge")).download_time(share).low < 100 * GB / 1e9
    assert (
        verdicts(advise_storage(data(900 * GB), AccessPattern(), HostProfile(TINY_DISK)))["File"] == "cannot"
    )


def test_the_documented_download_is_within_the_range() -> None:
    """50 GB in 100 MB files take about 5 minutes (AWS)."""
    for instance in (None, G5):
        span = HostProfile(instance).download_time(DataShare(50 * GB, 500))
        assert span.low <= 300 <= span.high * 1.01 + 80


_DATA = st.builds(
    lambda files, mean: DatasetStats(files, files * mean), st.integers(1, 10**9), st.integers(0, 10**10)
)
_NEEDS = st.builds(
    AccessPattern,
    st.none() | st.integers(1, 1000),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["training", "processing", "slurm"]),
)
_MACHINES = st.builds(
    HostProfile, st.none() | st.sampled_from(sorted(known_types().values())), st.integers(1, 2000)
)


@settings(max_examples=150, deadline=None)
@given(_DATA, _NEEDS, _MACHINES)
def test_one_way_is_taken_whatever_the_data(
    facts: DatasetStats, needs: AccessPattern, machine: HostProfile
) -> None:
    advice = advise_storage(facts, needs, machine)
    assert [way.verdict for way in advice.options].count("take") == 1
    for way in advice.options:
        for span in (way.startup, way.first_epoch, way.later_epoch, way.total_time(needs.epochs or 2)):
            assert span is None or 0 <= span.low <= span.high
    if advice.chosen.name == "File":
        assert advice.host_data.bytes <= machine.disk_bytes
    if needs.platform == "processing":
        assert advice.mode in ("File", "Pipe")
    if advice.chosen.name == "memory" and machine.memory_bytes is not None and needs.platform != "slurm":
        assert advice.host_data.bytes <= machine.memory_bytes
    document, text = advice.to_dict(), as_text(advice, "s3://b/\x1b[31m/")
    assert document["take"] == advice.chosen.name
    assert "\x1b" not in text


@given(_DATA, _MACHINES, st.integers(2, 50))
@settings(max_examples=50, deadline=None)
def test_more_data_never_takes_less_time(facts: DatasetStats, machine: HostProfile, factor: int) -> None:
    share = DataShare(facts.bytes, facts.files)
    larger = DataShare(facts.bytes * factor, facts.files * factor)
    for way in (machine.download_time, machine.disk_read_time, machine.memory_read_time):
        assert way(share).high <= way(larger).high * 1.0001
        assert way(share).low <= way(larger).low * 1.0001


def test_every_figure_says_where_it_comes_from() -> None:
    for row in storage.figures().values():
        assert row.kind in ("documented", "measured", "assumed")
        assert row.source
        assert row.what
        assert 0 < row.low <= row.high
    advice = advise_storage(data(60 * GB), AccessPattern(), HostProfile(G5))
    assert all(row.what in as_text(advice, "x").replace("\n    ", " ") for row in advice.assumptions)


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
    assert str(EstimateRange(low, high)) == text


def test_a_census() -> None:
    count = DatasetCounter()
    sizes = [0, 1, 3, 4, 100, 60_000_000]
    for number, size in enumerate(sizes):
        count.add(f"a/{number}.csv.gz" if number == 4 else f"a/{number}.jpg", size)
    facts = count.stats()
    assert (facts.files, facts.bytes, facts.largest_bytes) == (6, sum(sizes), 60_000_000)
    assert (facts.small_files, facts.table_bytes) == (5, 100)
    assert facts.median_bytes == 3
    assert re.search(TABLE_PATTERN, "x.JSONL")
    assert not re.search(TABLE_PATTERN, "x.csv.png")


# ---- in a plan -------------------------------------------------------------------------------------------


def _facts(objects: int, size: int, **changes: object) -> InputFacts:
    return dataclasses.replace(InputFacts("s3://b/d/", "s3", objects=objects, bytes=size), **changes)  # type: ignore[arg-type]


def _storage_advice(facts: InputFacts, mode: str = "File", **known_facts: object) -> tuple[str, str]:
    """Returns the reason on the channel ``train``, and the warnings."""
    job = {"inputs": {"train": {"uri": "s3://b/d/", "mode": mode}}}
    job_plan = plan(job, with_inputs(region(**known_facts), {"train": facts}))
    reasons = [reason.explanation for reason in job_plan.reasons if reason.rule == "inputs.train.storage"]
    return "".join(reasons), " ".join(job_plan.warnings)


def test_a_plan_says_how_its_channels_are_best_read() -> None:
    explanation, warnings = _storage_advice(_facts(500, 50 * GB))
    assert explanation.startswith("Mode File as advised: File (")
    assert "before training" in explanation
    assert not warnings
    explanation, _ = _storage_advice(_facts(500, 50 * GB), mode="Pipe")
    assert explanation.startswith("Mode Pipe as the job says; advised for most scripts: File")


def test_a_plan_warns_of_many_small_files() -> None:
    _, warnings = _storage_advice(_facts(9_000, GB))
    assert "smlaunch data pack" in warnings
    _, warnings = _storage_advice(_facts(10_000, GB, is_truncated=True))
    assert "smlaunch data advise s3://b/d/" in warnings


def test_a_plan_has_nothing_to_say_of_little_data_or_of_this_machine() -> None:
    assert _storage_advice(_facts(1000, 10**6)) == ("", "")
    job = {"inputs": {"train": {"uri": "s3://b/d/"}}}
    local_plan = plan(job, with_inputs(local(), {"train": _facts(500, 50 * GB)}))
    assert not any(reason.rule == "inputs.train.storage" for reason in local_plan.reasons)


def test_every_known_type_can_be_advised_for() -> None:
    for instance in known_types().values():
        advice = advise_storage(data(60 * GB), AccessPattern(), HostProfile(instance))
        assert as_text(advice, "s3://b/")
