"""Finds and reads the configuration files of a team: smlaunch's own, and those of the SageMaker Python SDK.

Where they are, and that a file which the user names must exist, is as in the SDK's
``sagemaker/config/config.py`` (https://sagemaker.readthedocs.io/en/stable/api/utility/config.html).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.facts.team_settings import Default, ReadFile, TeamSettings
from smlaunch.text.home_folder import expand_home

OWN_VARIABLE = "SMLAUNCH_CONFIG"
SDK_USER_VARIABLE = "SAGEMAKER_USER_CONFIG_OVERRIDE"
SDK_ADMIN_VARIABLE = "SAGEMAKER_ADMIN_CONFIG_OVERRIDE"

_FILE_NAME = "config.yaml"
_MAX_BYTES = 1 << 20

S3Reader = Callable[[str, str], bytes | None]
"""Returns the object of a bucket and a key; None if there is none."""


class ConfigFile(NamedTuple):
    """A place where a configuration file may be."""

    title: str
    """Whose it is, such as ``smlaunch``."""
    address: str
    """Path, or address in S3."""
    variable: str | None
    """Variable that names it; None for the usual place, where it may be missing."""
    is_of_sdk: bool

    @property
    def is_in_s3(self) -> bool:
        return self.address.startswith("s3://")

    @property
    def path(self) -> Path:
        """The file itself, where the address may be that of its folder."""
        path = expand_home(self.address)
        return path / _FILE_NAME if self.is_of_sdk and path.is_dir() else path

    @property
    def exists(self) -> bool:
        return not self.is_in_s3 and self.path.exists()


def config_files(environment: Mapping[str, str]) -> tuple[ConfigFile, ...]:
    """Return the places of the files by precedence: what the first states, the others do not change."""
    user_folder, sdk_user_folder, sdk_admin_folder = _config_folders(environment)
    places = (
        ("smlaunch", OWN_VARIABLE, user_folder and user_folder / "smlaunch", False),
        ("SageMaker SDK, user", SDK_USER_VARIABLE, sdk_user_folder and sdk_user_folder / "sagemaker", True),
        ("SageMaker SDK, administrator", SDK_ADMIN_VARIABLE, sdk_admin_folder / "sagemaker", True),
    )
    return tuple(_find_files(places, environment))


def _find_files(places: Any, environment: Mapping[str, str]) -> Iterator[ConfigFile]:
    for title, variable, usual_folder, is_of_sdk in places:
        stated = environment.get(variable)
        if stated:
            yield ConfigFile(title, stated, variable, is_of_sdk)
        elif usual_folder is not None:
            yield ConfigFile(title, str(usual_folder / _FILE_NAME), None, is_of_sdk)


def _config_folders(environment: Mapping[str, str]) -> tuple[Path | None, Path | None, Path]:
    """Return the folders of the user's configuration, for smlaunch and for the SDK, and the
    administrator's for the SDK. The SDK has those of platformdirs. Without a home the user has none."""
    home = Path(environment["HOME"]) if environment.get("HOME") else None
    stated_folder = Path(environment.get("XDG_CONFIG_HOME", ""))
    # The XDG specification ignores a relative path.
    user_folder = stated_folder if stated_folder.is_absolute() else home and home / ".config"
    if sys.platform == "darwin":
        return (
            user_folder,
            home and home / "Library/Application Support",
            Path("/Library/Application Support"),
        )
    first_site = environment.get("XDG_CONFIG_DIRS", "").split(os.pathsep)[0]
    return user_folder, user_folder, Path(first_site) if first_site else Path("/etc/xdg")


def read_team_settings(environment: Mapping[str, str], read_s3: S3Reader | None = None) -> TeamSettings:
    """Read all files that there are. Raises JobError with every problem of all of them, by file and key.

    ``read_s3``: reads those that a variable places in S3; None where no service can be asked.
    """
    files: list[ReadFile] = []
    unread: dict[str, str] = {}
    problems: list[Problem] = []
    for place in config_files(environment):
        if place.is_in_s3 and read_s3 is None:
            unread[place.address] = "it is in S3, which was not asked"
            continue
        try:
            read_file = _read_file(place, read_s3)
        except JobError as error:
            problems += error.problems
        else:
            files += [] if read_file is None else [read_file]
    if problems:
        raise JobError(problems)
    return TeamSettings(tuple(files), unread)


def find_default_region(environment: Mapping[str, str]) -> Default | None:
    """Return the region that smlaunch's own file names. Raises JobError as ``read_team_settings`` does."""
    defaults = read_team_settings(environment).defaults()
    return next((default for default in defaults if default.field == "region"), None)


def _read_file(place: ConfigFile, read_s3: S3Reader | None) -> ReadFile | None:
    """Return a file's content; None for one that is missing or empty. Raises JobError."""
    name, content = _read_s3_file(place, read_s3) if place.is_in_s3 else _read_local_file(place)
    if content is None:
        if place.variable is None:
            return None
        raise JobError([Problem(name, f"{place.variable} names it, and there is no such file")])
    from smlaunch.job.sdk_config import SdkConfig
    from smlaunch.job.team_config import TeamConfig
    from smlaunch.job.yaml_file import parse_yaml_mapping

    document = parse_yaml_mapping(content, name, "SchemaVersion: '1.0'" if place.is_of_sdk else "defaults:")
    if not document:
        return None
    section_class = SdkConfig if place.is_of_sdk else TeamConfig
    try:
        return ReadFile(name, section_class(**{str(key): value for key, value in document.items()}))
    except JobError as error:
        raise JobError(
            problem._replace(path=f"{name}: {problem.path}" if problem.path else name)
            for problem in error.problems
        ) from None


def _read_local_file(place: ConfigFile) -> tuple[str, bytes | None]:
    """Return path and content; None if there is no such file."""
    name = str(place.path)
    try:
        # A pipe would wait for a writer.
        with os.fdopen(os.open(place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) and name != os.devnull:
                raise JobError([Problem(name, "it is not a file; remove it, or name another one")])
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return name, None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise JobError([Problem(name, f"the configuration file cannot be read: {reason}")]) from None
    return name, _check_size(name, content)


def _read_s3_file(place: ConfigFile, read_s3: S3Reader | None) -> tuple[str, bytes | None]:
    """Return address and content of the object, or of ``config.yaml`` in the folder that the address names.
    None if there is neither."""
    bucket, _, key = place.address.removeprefix("s3://").partition("/")
    keys = ([key] if key and not key.endswith("/") else []) + [f"{key.rstrip('/')}/{_FILE_NAME}".lstrip("/")]
    for key_of_file in keys:
        content = read_s3(bucket, key_of_file) if read_s3 is not None else None
        if content is not None:
            name = f"s3://{bucket}/{key_of_file}"
            return name, _check_size(name, content)
    return place.address, None


def _check_size(name: str, content: bytes) -> bytes:
    if len(content) > _MAX_BYTES:
        raise JobError([Problem(name, f"the configuration file is larger than {_MAX_BYTES >> 20} MB")])
    return content
