"""Where a session's AWS credentials come from, and what renews them. Reads configuration only, no network.

botocore's errors name neither the profile nor the command to run; the source has both.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

SourceKind = Literal[
    "arguments",
    "environment",
    "keys",
    "sso",
    "login",
    "process",
    "web identity",
    "container",
    "instance",
    "none",
]


class CredentialSource(NamedTuple):
    """Where botocore takes the credentials from."""

    kind: SourceKind
    """``none``: nothing is configured; then only the role of an AWS machine could give some."""
    profile: str | None = None
    """The profile that says how to get them: for a role, the last one of its source profiles. None for
    credentials of no profile."""
    sso_session: str | None = None
    """Section of the AWS configuration that the SSO profile shares with others."""
    has_local_alternative: bool = True
    """What needs the credentials can run on this machine instead, without any."""

    def __str__(self) -> str:
        """Return the source in words, such as ``the profile 'dev'``."""
        if self.profile is not None:
            return f"the profile {self.profile!r}"
        return _SOURCE_TEXTS.get(self.kind, "this machine")

    @property
    def renewal(self) -> str:
        """What to do about credentials that have expired or are not accepted, as a clause."""
        profile_option = _profile_option(self.profile)
        if self.kind == "sso":
            session = "" if self.sso_session is None else f" (its sso-session is {self.sso_session!r})"
            return f"run `aws sso login{profile_option}`{session}, then the command again"
        if self.kind == "login":
            return f"run `aws login{profile_option}`, then the command again"
        if self.kind == "keys":
            return f"put valid keys into it (`aws configure{profile_option}`), or name another with --profile"
        if self.kind == "process":
            return (
                "run its credential_process by hand to see why (`aws configure get credential_process"
                f"{profile_option}` prints it)"
            )
        is_local_advised = self.kind == "none" and self.has_local_alternative
        return _RENEWALS[self.kind] + (_LOCAL_ALTERNATIVE if is_local_advised else "")


_SOURCE_TEXTS: Mapping[str, str] = {
    "arguments": "the session that the caller made",
    "environment": "the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "web identity": "the file of AWS_WEB_IDENTITY_TOKEN_FILE",
    "container": "the container's role",
    "instance": "the machine's role",
}

_RENEWALS: Mapping[SourceKind, str] = {
    "arguments": "make the session with valid ones",
    "environment": (
        "set them and, for temporary credentials, AWS_SESSION_TOKEN to valid ones, or unset them to use a "
        "profile"
    ),
    "web identity": "have a new token written to it",
    "container": "check the role of the container",
    "instance": "check the role of the machine",
    "none": (
        "name a profile with --profile or AWS_PROFILE, or make one with `aws configure sso` (single sign-on) "
        "or `aws configure` (keys)"
    ),
}

_LOCAL_ALTERNATIVE = (
    ", or add --local (in Python: local_target() as target) to run on this machine without AWS"
)


def _profile_option(profile: str | None) -> str:
    return "" if profile in (None, "default") else f" --profile {shlex.quote(str(profile))}"


def find_credential_source(session: Any, environment: Mapping[str, str]) -> CredentialSource:
    """Return where a botocore session finds its credentials. Raises BotoCoreError if the AWS configuration
    cannot be read."""
    given_profile = session.instance_variables().get("profile")  # by an option: AWS_PROFILE is not among them
    if given_profile is None and environment.get("AWS_ACCESS_KEY_ID"):
        return CredentialSource("environment")
    source = _find_source_of_profile(session.profile or "default", session.full_config.get("profiles", {}))
    if source.kind != "none":
        return source
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return CredentialSource("web identity")
    if any(environment.get(name) for name in _CONTAINER_VARIABLES):
        return CredentialSource("container")
    return CredentialSource("none", session.profile)


_CONTAINER_VARIABLES = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")


def _find_source_of_profile(name: str, profiles: Mapping[str, Mapping[str, Any]]) -> CredentialSource:
    """Return the source of a profile's credentials; for a profile with a role, of those that assume it."""
    seen_names: set[str] = set()
    while name not in seen_names:
        seen_names.add(name)
        profile = profiles.get(name, {})
        source_profile = profile.get("source_profile") if "role_arn" in profile else None
        if source_profile in (None, name):
            return _source_of_settings(name, profile)
        name = str(source_profile)
    return CredentialSource("none", name)  # a circle of source profiles, which botocore reports


def _source_of_settings(name: str, profile: Mapping[str, Any]) -> CredentialSource:
    """Return the source that the settings of a profile name, without its source profile."""
    for setting, kind in _KIND_BY_SETTING.items():
        if setting in profile:
            sso_session = profile.get("sso_session") if kind == "sso" else None
            return CredentialSource(kind, name, sso_session)
    # The role of a machine or container, which is of no profile.
    machine_kind = _KIND_BY_CREDENTIAL_SOURCE.get(str(profile.get("credential_source")))
    return CredentialSource("none", name) if machine_kind is None else CredentialSource(machine_kind)


_KIND_BY_SETTING: Mapping[str, SourceKind] = {
    "web_identity_token_file": "web identity",
    "sso_account_id": "sso",
    "sso_role_name": "sso",
    "aws_access_key_id": "keys",
    "login_session": "login",
    "credential_process": "process",
}
"""In botocore's order."""

_KIND_BY_CREDENTIAL_SOURCE: Mapping[str, SourceKind] = {
    "Environment": "environment",
    "Ec2InstanceMetadata": "instance",
    "EcsContainer": "container",
}
