"""A script for Spark, on a Spark cluster of two hosts of the endpoint: both work, and no row is lost."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS
from tests.real.frameworks import smlaunch_of

pq = pytest.importorskip("pyarrow.parquet", reason="the extra data; `make test-real` installs it")

pytestmark = pytest.mark.timeout(600)

SCRIPT = ENTRYPOINTS / "prepare_spark.py"

# Six Java machines that live for seconds: compiling well costs them twice the time that it spares.
SHORT_LIVED = ("--env", "JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and there is none: install one, such as openjdk-17-jre-headless")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    subprocess.run([sys.executable, SCRIPT, "--make", folder], check=True)
    return folder


def by_region(tables: Path) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns number of sales and cents by (region, item), computed in plain Python."""
    with (tables / "shops" / "shops.csv").open(newline="") as file:
        region_of = {row["shop"]: row["region"] for row in csv.DictReader(file)}
    sales: Counter[tuple[str, int]] = Counter()
    cents: Counter[tuple[str, int]] = Counter()
    for path in (tables / "sales").glob("*.csv"):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                key = region_of[row["shop"]], int(row["item"])
                sales[key] += 1
                cents[key] += int(row["cents"])
    return {key: (sales[key], cents[key]) for key in sales}


def test_a_table_is_prepared_by_two_hosts(home: Path, tables: Path) -> None:
    result = smlaunch_of(
        *("frameworks", home, "run", SCRIPT, "--local", "--hosts", "2", "--name", "tables"),
        *("--input", f"sales={tables / 'sales'}", "--input", f"shops={tables / 'shops'}", *SHORT_LIVED),
        timeout=500,
    )
    assert result.code == 0, result.text
    assert "strategy spark" in result.err
    (output,) = home.glob("s3/*/smlaunch/tables/output/tables-s1-a1/output")
    rows = [
        row for path in output.glob("by-region/part-*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert {(row["region"], row["item"]): (row["sales"], row["cents"]) for row in rows} == by_region(tables)
    assert len(rows) == 100
    summary = json.loads((output / "summary.json").read_text())
    assert summary["by_host"].keys() == {"algo-1", "algo-2"}
    assert sum(summary["by_host"].values()) == summary["sales"] == 40_000
    assert all(summary["by_host"].values())


def test_a_driver_that_fails_is_told_and_ends_everything(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "source" / "prepare.py"
    script.parent.mkdir()
    script.write_text(
        "import pyspark\nraise ValueError('no rows for Spark %s' % pyspark.__version__.split('.')[0])\n"
    )
    result = smlaunch_of(
        *(
            "frameworks",
            home,
            "run",
            script,
            "--local",
            "--hosts",
            "2",
            "--name",
            "few",
            "--json",
            *SHORT_LIVED,
        )
    )
    assert result.code == 1, result.text
    (job,) = result.json()["jobs"]
    assert job["failure"]["host"] == "algo-1"
    assert "ValueError: no rows for Spark 4" in job["failure"]["cause"], result.text
