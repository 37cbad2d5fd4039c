"""Images past their end of patch, which still run, and are warned of. Pure: the day is given."""

from __future__ import annotations

from datetime import date

from smlaunch.catalog import images
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import Surroundings

SOON = 30
"""Days before the end of patches from which on it is told."""


def warn_of_patches(image: str, surroundings: Surroundings, notes: Notes) -> None:
    """``image``: its URI; nothing is said of one that is only recorded, or that the catalog does not know."""
    known, today = images.patches(image), surroundings.today
    is_run = surroundings.target == "aws" or surroundings.endpoint.runs_images
    if known is None or today is None or not is_run:
        return
    days = (date.fromisoformat(known.until) - today).days
    what = f"AWS's image of {known.title} {known.version}"
    if days < 0:
        notes.warn(f"{what} has had no security patches since {known.until}; take a newer version.")
    elif days <= SOON:
        notes.warn(f"{what} gets its last security patches on {known.until}; plan for a newer version.")
