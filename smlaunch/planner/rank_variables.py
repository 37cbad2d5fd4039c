"""Environment variables that ranks get because of their libraries and machines, each with a reason. Pure."""

from __future__ import annotations

from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.efa import efa_settings
from smlaunch.strategies.base import LaunchContext, first_imported

MPLBACKEND = "MPLBACKEND"


def add_rank_variables(
    spec: LaunchSpec, context: LaunchContext, has_own_image: bool, diagnostics: Diagnostics
) -> LaunchSpec:
    """Add the variables to the launch specification. ``has_own_image``: the job names its image. Variables of
    the job take precedence and are not reported."""
    variables = {
        **_display_variables(context, diagnostics),
        **_efa_variables(context, has_own_image, diagnostics),
    }
    existing_names = context.environment_names | {name for name, _ in spec.ranks.env}
    added_variables = tuple(pair for pair in variables.items() if pair[0] not in existing_names)
    if not added_variables:
        return spec
    return spec._replace(ranks=spec.ranks._replace(env=(*spec.ranks.env, *added_variables)))


def _display_variables(context: LaunchContext, diagnostics: Diagnostics) -> dict[str, str]:
    """Hosts have no display, and some backends of matplotlib fail without one."""
    if MPLBACKEND in context.environment_names or first_imported(context.imports, ("matplotlib",)) is None:
        return {}
    diagnostics.add_reason(
        "display.matplotlib",
        f"{context.entry} imports matplotlib, and hosts have no display: ranks get {MPLBACKEND}=Agg, which "
        "draws to files (savefig).",
    )
    return {MPLBACKEND: "Agg"}


def _efa_variables(context: LaunchContext, has_own_image: bool, diagnostics: Diagnostics) -> dict[str, str]:
    """Variables for EFA adapters."""
    if context.target != "aws":
        return {}
    settings = efa_settings(context.instance_type, context.image, context.hosts, has_own_image)
    if settings is None:
        return {}
    diagnostics.add_reason(settings.rule, settings.explanation)
    return dict(settings.variables)
