"""The variables of a process that has no account, and none of the settings of this machine's user."""

from __future__ import annotations

import os

from smlaunch.discovery.config_files import OWN_VARIABLE, SDK_ADMIN_VARIABLE, SDK_USER_VARIABLE

NO_TEAM_DEFAULTS = dict.fromkeys((OWN_VARIABLE, SDK_USER_VARIABLE, SDK_ADMIN_VARIABLE), os.devnull)
"""An empty file is one that says nothing."""

_NO_ACCOUNT = {
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_PREFIXES = ("AWS_", "SM_", "SMLAUNCH_", "SAGEMAKER_")


def environment_without_account() -> dict[str, str]:
    """Return this process's environment without what AWS's tools and smlaunch read."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
    return {**inherited, **NO_TEAM_DEFAULTS, **_NO_ACCOUNT}
