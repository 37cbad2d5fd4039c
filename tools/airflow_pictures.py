"""Photographs Airflow's own pages for docs/airflow.md: an exported chain that lost a host, and a task's log.

    python -m tools.airflow_pictures docs/images

Needs what `make test-real` installs for Airflow, playwright and pillow, and a chromium on the PATH.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.e2e.chains import SCRIPT
from tests.real.airflow_site import Site

NIGHTLY = """\
from datetime import datetime
from airflow.sdk import DAG
from smlaunch.airflow import SmlaunchOperator

with DAG("nightly", schedule=None, start_date=datetime(2026, 1, 1)):
    job = {"entry": "SOURCE/short.py", "limits": {"max_runtime": "1h", "segment": "60s"}}
    SmlaunchOperator(task_id="train", job=job, deferrable=True)
"""
HOST_LOST = {"fault": "host-lost", "jobs": "digits-*-s2-a1", "after": 3.0}
LIKED = """\
localStorage.setItem("default_dag_view", JSON.stringify("graph"));
localStorage.setItem("log_show_timestamp", "false");
"""
"""What a person would have chosen in the pages' own settings."""

QUIET = ".react-flow__minimap, [aria-label^='Press Ctrl'] { visibility: hidden }"
"""What lies over the picture."""


def ran(site: Site) -> None:
    """Both DAGs, to their ends."""
    dags, source = site.home / "dags", site.home / "source"
    chain = (str(source / "halves.py"), "--called", "digits", "--env", "TEST_PAUSE=0.4")
    limits = ("--max-runtime", "3m", "--segment", "60s")
    site.run("smlaunch", "export", "airflow", *chain, *limits, "--local", "--out", str(dags))
    (source / "short.py").write_text(SCRIPT.replace("= 50, 10", "= 10, 5"))
    (dags / "nightly.py").write_text(NIGHTLY.replace("SOURCE", str(source)))
    site.start("triggerer", "--skip-serve-logs")
    site.begin(["digits", "nightly"])
    ends = ("success", "failed", "upstream_failed")
    site.wait("the exported chain's end", lambda: site.task("digits", "finished")["state"] in ends)
    site.wait("the task's end", lambda: site.is_("nightly", *ends))


def photographed(page: Page, path: Path) -> None:
    page.add_style_tag(content=QUIET)
    page.wait_for_timeout(3000)  # the graph is laid out and moved into place
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
    print(path, path.stat().st_size, "bytes")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="airflow-"))
    site = Site(home, by_connection=True, faults=[HOST_LOST])
    try:
        ran(site)
        address = f"http://127.0.0.1:{site.port}"
        with sync_playwright() as player:
            browser = player.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"], chromium_sandbox=False
            )
            page = browser.new_page(viewport={"width": 1600, "height": 420})
            page.add_init_script(LIKED)
            page.goto(f"{address}/dags/digits/runs/once")
            page.get_by_text("more_after_2").first.wait_for()
            photographed(page, folder / "airflow-chain.png")
            page.set_viewport_size({"width": 880, "height": 760})
            page.goto(f"{address}/dags/nightly/runs/once/tasks/train")
            page.get_by_text("Pre Execute").first.wait_for()
            page.keyboard.press("f")  # the log alone
            photographed(page, folder / "airflow-log.png")
            browser.close()
    finally:
        site.close()
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
