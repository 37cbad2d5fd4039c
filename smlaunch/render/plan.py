"""The plan as users get it: it prints itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from smlaunch.planner.plan import RunPlan
from smlaunch.text.terminal import terminal_width


class Plan(RunPlan):
    """All decisions about a run, with their reasons and the exact requests. ``print(plan)`` shows it to
    people, ``to_dict()`` to programs, and a notebook shows it as HTML."""

    @classmethod
    def of(cls, plan: RunPlan) -> Plan:
        """Return the same plan as one that prints itself."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(RunPlan)})

    @property
    def requests(self) -> list[Mapping[str, Any]]:
        """The requests of all planned jobs, in order, as boto3 takes them. What is shown of them has secrets
        masked."""
        from smlaunch.render.masked_request import MaskedRequest

        return [MaskedRequest(request) for request in super().requests]

    def to_dict(self) -> dict[str, Any]:
        """The document of ``plan --json`` in plain types; docs/planner.md lists the keys. Secrets are
        masked here; ``requests`` has their values."""
        from smlaunch.render.plan_document import plan_as_dict

        return plan_as_dict(self)

    def _repr_html_(self) -> str:
        """HTML for a notebook cell."""
        from smlaunch.render.plan_html import plan_as_html

        return plan_as_html(self)

    def __str__(self) -> str:
        """Return the plan as text, wrapped to the width of the terminal if the program prints to one."""
        from smlaunch.render.plan_text import as_text

        return as_text(self, width=terminal_width(sys.stdout))
