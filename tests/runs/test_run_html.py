"""A run in a notebook's cell: its target, without a request, and no markup of the job's texts."""

from __future__ import annotations

from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_kinds import run_of_single_job


class ForbiddenClients:
    """Clients that must not be requested."""

    def create_client(self, *arguments: object, **keywords: object) -> object:
        raise AssertionError(f"asked for a client: {arguments}")


def test_a_run_renders_without_a_request() -> None:
    target = Target("aws", "eu-west-1", polling=None, session=ForbiddenClients())  # type: ignore[arg-type]
    html = run_of_single_job("digits", target, "digits-<b>", attached=False)._repr_html_()
    assert "launched" in html
    for text in ("digits", "eu-west-1", "digits-&lt;b&gt;"):
        assert f"<td>{text}</td>" in html
    assert "attached to it" in run_of_single_job("digits", target, "a", attached=True)._repr_html_()
