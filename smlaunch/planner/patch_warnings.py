"""Warn about images near or past the end of their security patches. Pure: today's date is a fact."""

from __future__ import annotations

from datetime import date

from smlaunch.catalog import images
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts

WARNING_DAYS = 30
"""Days before the end of patches from which the plan warns."""


def warn_of_patch_end(image: str, facts: Facts, diagnostics: Diagnostics) -> None:
    """Warn about the image's end of patches. No warning for images that are only recorded or not in the
    catalog."""
    support, today = images.find_patch_support(image), facts.today
    is_run = facts.target == "aws" or facts.endpoint.runs_images
    if support is None or today is None or not is_run:
        return
    days_left = (date.fromisoformat(support.until) - today).days
    image_text = f"AWS's image of {support.title} {support.version}"
    if days_left < 0:
        diagnostics.add_warning(
            f"{image_text} has had no security patches since {support.until}; take a newer version."
        )
    elif days_left <= WARNING_DAYS:
        diagnostics.add_warning(
            f"{image_text} gets its last security patches on {support.until}; plan for a newer version."
        )
