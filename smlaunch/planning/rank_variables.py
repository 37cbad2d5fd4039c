"""Variables that ranks get because of what they are and where they run, each told. Pure."""

from __future__ import annotations

from smlaunch.planning.efa import efa
from smlaunch.planning.notes import Notes
from smlaunch.protocol.launch_spec import LaunchSpec
from smlaunch.strategies.base import Setting, imported

MPLBACKEND = "MPLBACKEND"


def with_variables(spec: LaunchSpec, setting: Setting, own_image: bool, notes: Notes) -> LaunchSpec:
    """``own_image``: the job names its image. The job's own variables win, and are not told."""
    wanted = {**_display(setting, notes), **_fabric(setting, own_image, notes)}
    taken = setting.environment | {name for name, _ in spec.ranks.env}
    added = tuple(pair for pair in wanted.items() if pair[0] not in taken)
    if not added:
        return spec
    return spec._replace(ranks=spec.ranks._replace(env=(*spec.ranks.env, *added)))


def _display(setting: Setting, notes: Notes) -> dict[str, str]:
    """Hosts have no display, and some backends of matplotlib fail without one."""
    if MPLBACKEND in setting.environment or imported(setting.imports, ("matplotlib",)) is None:
        return {}
    notes.because(
        "display.matplotlib",
        f"{setting.entry} imports matplotlib, and hosts have no display: ranks get {MPLBACKEND}=Agg, which "
        "draws into files (savefig).",
    )
    return {MPLBACKEND: "Agg"}


def _fabric(setting: Setting, own_image: bool, notes: Notes) -> dict[str, str]:
    if setting.target != "aws":
        return {}
    found = efa(setting.instance_type, setting.image, setting.hosts, own_image)
    if found is None:
        return {}
    notes.because(found.rule, found.because)
    return dict(found.variables)
