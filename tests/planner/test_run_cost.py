"""What a run costs at most: which prices count, which time, and which advice a refusal gives."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from smlaunch.catalog.instances import known_types
from smlaunch.contract.run_names import JobName
from smlaunch.facts.discovered_facts import InputFacts, StoredFile
from smlaunch.job.model import Job
from smlaunch.runs.run_state import observed_job_from_description
from tests.planner.fixtures import TORCH, UNTRAINED_HOURS, local, plan, region, with_inputs
from tests.planner.test_plan import refusals
from tests.planner.test_segments import OURS
from tests.tables import table

IRELAND = region(region="eu-west-1", script=TORCH)
RESUMES = region(script=OURS)


def catalog_price(instance_type: str) -> float:
    price = known_types()[instance_type].usd_per_hour
    assert price is not None
    return price


# ---- whose price it is -----------------------------------------------------------------------------------

P4D_PRICE, G5_PRICE = catalog_price("ml.p4d.24xlarge"), catalog_price("ml.g5.xlarge")
NAMED = {"instance_type": "ml.g5.xlarge", "price_per_hour": 0.5}
TO_P4D = [{"until_step": 1}, {"compute": {"instance_type": "ml.p4d.24xlarge", "hosts": 8}}]


@table(
    ("compute", "segments", "prices"),
    [
        (NAMED, [{"until_step": 1}, {}], [0.5, 0.5]),
        (NAMED, [{"until_step": 1}, {"compute": {"hosts": 3}}], [0.5, 1.5]),
        (NAMED, [{"until_step": 1}, {"compute": {"instance_type": "ml.g5.xlarge"}}], [0.5, 0.5]),
        (NAMED, TO_P4D, [0.5, 8 * P4D_PRICE]),
        (NAMED, [{"until_step": 1}, {"compute": {"instance_type": "ml.g99.xlarge"}}], [0.5, None]),
        ({"price_per_hour": 0.5}, TO_P4D, [0.5, 8 * P4D_PRICE]),
        ({"price_per_hour": 0.5, "instance_preferences": ["ml.g5.xlarge"]}, [{}], [0.5]),
        (
            {"price_per_hour": 1, "instance_preferences": ["ml.g5.xlarge", "ml.p4d.24xlarge"]},
            [{}],
            [P4D_PRICE],
        ),
        (
            {"price_per_hour": 90, "instance_preferences": ["ml.g5.xlarge", "ml.p4d.24xlarge"]},
            [{}],
            [90],
        ),
        (
            {"price_per_hour": 1, "instance_preferences": ["ml.g5.xlarge", "ml.g99.xlarge"]},
            [{}],
            [None],
        ),
    ],
)
def test_a_price_is_of_the_type_that_the_job_names(
    compute: dict[str, Any], segments: list[dict[str, Any]], prices: list[float | None]
) -> None:
    limits = {"max_runtime": "100h", "segment": "24h"}
    job_plan = plan(
        {"compute": compute, "segments": segments, "limits": limits, "checkpoints": "s3://b/c/"}, RESUMES
    )
    # The driver counts the cap by these.
    assert [variant.price_per_hour for variant in job_plan.workflow.variants] == prices
    if None in prices:
        assert not job_plan.cost.is_known
    else:
        assert job_plan.cost.per_hour == max(price for price in prices if price is not None)


@table(
    ("compute", "segments", "message"),
    [
        (
            NAMED,
            TO_P4D,
            "8 x ml.p4d.24xlarge for up to 100h, and 3h45m of starts, transfers and stops, may cost "
            f"${8 * (100 + 15 * UNTRAINED_HOURS) * P4D_PRICE:,.2f}, more than $20.00",
        ),
        (
            NAMED,
            [{"until_step": 1}, {"compute": {"instance_type": "ml.g99.xlarge"}}],
            "the price of ml.g99.xlarge in us-east-1 is not known, so that the cap cannot be enforced; "
            "compute.price_per_hour would be that of ml.g5.xlarge: take a type with a known price, or leave "
            "the cap out",
        ),
        (
            {"instance_type": "ml.g99.xlarge"},
            [{}],
            "the price of ml.g99.xlarge in us-east-1 is not known, so that the cap cannot be enforced; state "
            "it with compute.price_per_hour or --price",
        ),
    ],
)
def test_another_types_price_keeps_the_cap(
    compute: dict[str, Any], segments: list[dict[str, Any]], message: str
) -> None:
    limits = {"max_runtime": "100h", "segment": "24h", "max_cost": 20}
    job = {"compute": compute, "segments": segments, "limits": limits, "checkpoints": "s3://b/c/"}
    (line,) = refusals(job, RESUMES)
    assert line.startswith(f"limits.max_cost: {message}")


@table(
    ("workload", "limits"),
    [
        ({"time_on_one": "40h", "wanted_time": "12h"}, {"max_cost": 20, "max_runtime": "12h"}),
        ({"time_on_one": "40h", "wanted_time": "12h"}, {"max_cost": 500}),
        ({"time_on_one": "40h"}, {}),
        ({"model_memory": "10GB"}, {}),
    ],
)
def test_a_price_without_a_type_is_refused_where_the_plan_chooses_the_type(
    workload: dict[str, Any], limits: dict[str, Any]
) -> None:
    job = {"workload": workload, "limits": limits, "compute": {"price_per_hour": 1.5}}
    for facts in (IRELAND, local(script=TORCH)):
        (line, *_) = refusals(job, facts)
        assert line.startswith("compute.price_per_hour: it is the price of one instance type"), line
        assert "name compute.instance_type, or leave the price out" in line
    job["compute"] = {"price_per_hour": 1.5, "instance_type": "ml.g5.48xlarge"}
    assert plan(job, IRELAND).cost.per_hour == 1.5 * plan(job, IRELAND).hosts


def test_without_a_workload_the_price_is_of_the_default_type() -> None:
    assert plan({"compute": {"price_per_hour": 1.5}}).cost.per_hour == 1.5


@table(
    ("changes", "price", "note"),
    [
        ({"hosts": 2}, 1.0, "by compute.price_per_hour, for ml.g5.xlarge"),
        ({"instance_type": "ml.p4d.24xlarge"}, P4D_PRICE, "an estimate: on-demand price of us-east-1 as of "),
        (
            {"instance_type": "ml.p4d.24xlarge", "price_per_hour": 9},
            9.0,
            "by compute.price_per_hour, for ml.p4d",
        ),
        ({"instance_type": "ml.g99.xlarge"}, None, "the price of ml.g99.xlarge in us-east-1 is not known"),
    ],
)
def test_a_type_that_replaces_another_is_not_counted_by_the_others_price(
    changes: dict[str, Any], price: float | None, note: str
) -> None:
    job = Job.from_mapping({"entry": "train.py", "compute": NAMED, "limits": {"max_runtime": "1h"}})
    mapping = job.with_changes(compute=changes).to_mapping()
    cost = plan(mapping, RESUMES).cost
    assert cost.per_hour == price and cost.note.startswith(note)
    if price is None:
        (line,) = refusals({**mapping, "limits": {"max_runtime": "1h", "max_cost": 100}}, RESUMES)
        assert "the cap cannot be enforced; state it with compute.price_per_hour or --price" in line


def test_a_region_whose_prices_are_not_known_has_none_of_another_region() -> None:
    job = {"compute": {"instance_type": "ml.g5.xlarge"}, "limits": {"max_runtime": "1h"}}
    cost = plan(job, IRELAND).cost
    assert not cost.is_known
    assert cost.note == (
        "the price of ml.g5.xlarge in eu-west-1 is not known, only that in us-east-1; "
        "compute.price_per_hour or --price states it; `smlaunch catalog update` reads the region's prices"
    )
    (line,) = refusals({**job, "limits": {"max_runtime": "1h", "max_cost": 100}}, IRELAND)
    assert line.startswith(
        "limits.max_cost: the price of ml.g5.xlarge in eu-west-1 is not known, only that in us-east-1, so"
    )
    stated = {**job, "compute": {"instance_type": "ml.g5.xlarge", "price_per_hour": 2}}
    assert plan({**stated, "limits": {"max_runtime": "1h", "max_cost": 100}}, IRELAND).cost.maximum == 2.5


# ---- warm pools ------------------------------------------------------------------------------------------


def test_hosts_may_wait_after_every_segment() -> None:
    compute = {"instance_type": "ml.g5.xlarge", "price_per_hour": 1, "keep_alive": "6h"}
    job: dict[str, Any] = {
        "compute": compute,
        "limits": {"max_runtime": "10h", "segment": "1h", "max_cost": 500},
        "checkpoints": "s3://b/c/",
    }
    job_plan = plan(job, RESUMES)
    job_count = 3 * len(job_plan.segments)
    assert job_plan.cost.maximum == 10 + (6 + UNTRAINED_HOURS) * job_count
    assert (
        f"each of up to {job_count} jobs ({len(job_plan.segments)} segments, 3 attempts) is billed for 10m "
        "for its start, 5m for its stop and upload, 6h for the wait of its hosts for a next job"
        in " ".join(str(job_plan).split())
    )
    job["limits"]["max_cost"] = 16
    assert "the chain ends at a checkpoint before it has cost $16.00" in " ".join(
        str(plan(job, RESUMES)).split()
    )
    one_job = plan({"compute": compute, "limits": {"max_runtime": "10h"}})
    assert one_job.cost.maximum == 16 + UNTRAINED_HOURS


@table(
    ("members", "seconds"),
    [
        ({}, 100),
        ({"WarmPoolStatus": {"Status": "InUse"}}, 100),
        ({"WarmPoolStatus": {"Status": "Reused", "ResourceRetainedBillableTimeInSeconds": 40}}, 140),
    ],
)
def test_the_cap_counts_the_time_in_which_hosts_waited(members: dict[str, Any], seconds: float) -> None:
    description = {"TrainingJobStatus": "Completed", "BillableTimeInSeconds": 100, **members}
    assert observed_job_from_description(JobName("r", 1, 1), description).billable_seconds == seconds


# ---- advice ----------------------------------------------------------------------------------------------


@table(
    "limits",
    [
        {"max_cost": 20},
        {"max_cost": 20, "max_runtime": "38m"},
        {"max_cost": 100, "max_runtime": "24h"},
    ],
)
def test_a_refusal_for_cost_names_machines_on_offer_and_its_advice_works(
    limits: dict[str, Any],
) -> None:
    workload = {"time_on_one": "40h", "measured_on": "ml.g5.xlarge", "wanted_time": "12h"}
    job: dict[str, Any] = {"workload": workload, "limits": limits}
    facts = region(script=TORCH)
    (line,) = refusals(job, facts)
    assert line.startswith("limits.max_cost: "), line
    raised = re.search(r"raise it to \$([0-9,.]+[0-9])", line)
    assert raised is not None, line
    needed = float(raised[1].replace(",", ""))
    plan({**job, "limits": {**limits, "max_cost": needed}}, facts)
    shortened = re.search(r"shorten limits.max_runtime to ([0-9]+[hm])", line)
    assert (shortened is not None) == (limits["max_cost"] == 100), line
    if shortened is None:
        assert refusals({**job, "limits": {**limits, "max_cost": needed - 0.02}}, facts)
    else:
        plan({**job, "limits": {**limits, "max_runtime": shortened[1]}}, facts)


def test_the_cap_of_several_jobs_is_the_one_that_the_user_wrote() -> None:
    files = tuple(StoredFile(f"f{index}", 1_000_000) for index in range(3))
    data = InputFacts("s3://b/d/", "s3", objects=3, bytes=3_000_000, sha256="ab" * 32, files=files)
    job: dict[str, Any] = {
        "strategy": "share-nothing",
        "compute": {"instance_type": "ml.g5.xlarge", "hosts": 3, "price_per_hour": 1},
        "inputs": {"train": {"uri": "s3://b/d/", "split": "bytes", "split_via": "jobs"}},
        "limits": {"max_runtime": "10h", "max_cost": 29},
    }
    facts = with_inputs(dataclasses.replace(region(), script=TORCH), {"train": data})
    (line,) = refusals(job, facts)
    assert line.startswith(
        "limits.max_cost: 3 x ml.g5.xlarge for up to 10h, and 45m of starts, transfers and stops, may cost "
        "$32.25, more than $29.00; "
    )
    job["limits"]["max_cost"] = 33
    assert "At most $32.25 until the time limit, within the cap of $33.00." in str(plan(job, facts))


# ---- what the summary says -------------------------------------------------------------------------------


@table(
    ("limits", "text"),
    [
        ({"max_runtime": "28d1s", "segment": "28d"}, "the first ends itself after 27d23h55m"),
        ({"max_runtime": "4d", "segment": "48h"}, "the first ends itself after 1d23h55m"),
        (
            {"max_runtime": "48h", "segment": "24h", "max_cost": 1.5},
            "if every segment takes its full time; limits.max_cost pays for 45m of it at $2.00 per hour",
        ),
        (
            {"max_runtime": "48h", "segment": "24h", "max_cost": 95},
            "if every segment takes its full time; limits.max_cost pays for 1d23h of it at $2.00 per hour",
        ),
        ({"max_runtime": "48h", "segment": "24h", "max_cost": 101}, "if every segment takes its full time\n"),
    ],
)
def test_the_summary_says_when_a_chain_ends(limits: dict[str, Any], text: str) -> None:
    compute = {"instance_type": "ml.g5.xlarge", "price_per_hour": 2}
    job = {"compute": compute, "limits": limits, "checkpoints": "s3://b/c/"}
    assert text in re.sub(r"\n {4,}", " ", str(plan(job, RESUMES)))


# ---- what the largest bill contains ----------------------------------------------------------------------


def test_the_largest_bill_has_the_download_and_says_what_is_not_in_it() -> None:
    job: dict[str, Any] = {
        "compute": {"instance_type": "ml.m5.xlarge", "hosts": 2, "price_per_hour": 1, "volume_gb": 1000},
        "limits": {"max_runtime": "1h"},
        "inputs": {"train": "s3://b/t/"},
    }
    known = InputFacts("s3://b/t/", "s3", objects=100, bytes=720 * 10**9)  # an hour at 200 MB/s
    job_plan = plan(job, with_inputs(region(), {"train": known}))
    assert job_plan.cost.maximum == 2 * (1 + 1 + UNTRAINED_HOURS)
    assert job_plan.cost.volume_gb == job_plan.to_dict()["cost"]["volume_gb"] == 2000
    text = " ".join(str(job_plan).split())
    assert "at most $4.50 and 2,000 GB of disk (" in text
    assert "10m for its start, 1h for its download, 5m for its stop and upload, as is assumed." in text
    assert "Disks (2,000 GB) are billed besides, at a price that is not known." in text
    assert "of unknown size" not in text
    unsized = plan(job, with_inputs(region(), {"train": InputFacts("s3://b/t/", "s3")}))
    assert "The download of inputs.train, of unknown size, is not in it." in " ".join(str(unsized).split())
    here = plan(job, local())
    assert (here.cost.maximum, here.cost.volume_gb) == (2, 0)
