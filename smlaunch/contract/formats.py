"""The version of every format that smlaunch stores or sends. docs/formats.md documents each of them.

A version is ``MAJOR.MINOR``. A minor version adds members and changes nothing else: a reader ignores members
that it does not know, and keeps them where it writes a document again. A major version may rename or remove
members. A reader upgrades a document of an older major version, and refuses one of a newer version, or of no
version at all, by name.
"""

import re
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple

VERSION_KEY = "version"
_VERSION = re.compile(r"([1-9][0-9]{0,5})\.[0-9]{1,6}")

Document = Dict[str, Any]
Upgrade = Callable[[Document], Document]
"""Converts a document of one major version to the next one. The caller sets ``version``."""


class FormatError(ValueError):
    """A document whose version this release does not read. The message has the version and the next step."""


class Format(NamedTuple):
    """A versioned format."""

    title: str
    """What such a document is, for messages."""

    version: str = "1.0"
    """The version that is written."""

    upgrades: Tuple[Upgrade, ...] = ()
    """From major version 1 to 2, from 2 to 3, and so on up to ``version``."""

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0])

    def with_version(self, document: Mapping[str, Any]) -> Document:
        """Return the document with the version of this format."""
        return {VERSION_KEY: self.version, **document}

    def with_version_replacing(
        self, document: Mapping[str, Any], previous_document: Mapping[str, Any]
    ) -> Document:
        """Return the document, with a version, that replaces ``previous_document``. That may have a later
        minor version (``upgrade_document`` accepts it): then its additional members and its version are kept.
        """
        new_document = self.with_version(document)
        new_document.update(unknown_members(previous_document, document))
        previous_version = str(previous_document.get(VERSION_KEY))
        has_same_major = _major_of(previous_version) == self.major
        if has_same_major and _minor_of(previous_version) > _minor_of(self.version):
            new_document[VERSION_KEY] = previous_version
        return new_document

    def check_version(self, version: Any, document_name: str) -> int:
        """Return the major version of a document that this release reads. ``document_name``: for the message.
        Raises FormatError.
        """
        major = _major_of(version)
        if major is None:
            raise FormatError(
                "{}: this {} has no version: it was written before format 1.0, or not by smlaunch. Use the "
                "release that wrote it, or start again under another name".format(document_name, self.title)
            )
        if major > self.major:
            raise FormatError(
                "{}: this {} has version {}, and this smlaunch reads up to {}.x: use the release that wrote "
                "it, or a newer one (pip install -U smlaunch)".format(
                    document_name, self.title, version, self.major
                )
            )
        return major

    def upgrade_document(self, document: Any, document_name: str) -> Document:
        """Return the members of a parsed document, upgraded to this format's major version. Raises
        FormatError."""
        members: Document = dict(document) if isinstance(document, dict) else {}
        version = members.pop(VERSION_KEY, None)
        for upgrade in self.upgrades[self.check_version(version, document_name) - 1 :]:
            members = upgrade(members)
        return members


def _major_of(version: Any) -> Optional[int]:
    match = _VERSION.fullmatch(version) if isinstance(version, str) else None
    return int(match.group(1)) if match is not None else None


def _minor_of(version: str) -> int:
    return int(version.partition(".")[2])


def unknown_members(document: Mapping[str, Any], known_members: Mapping[str, Any]) -> Document:
    """Return the members that a later minor version added. ``known_members``: those of this release."""
    return {key: value for key, value in document.items() if key not in known_members and key != VERSION_KEY}


# ---- a run: docs/formats.md, "A run" -----------------------------------------------------------------------

RUN = Format("run", "1.1")
"""Resource tags, names of runs and jobs, names in the run's folder, and variables of a request."""

JOB_HASH = Format("job hash")
"""What is hashed of a job, and how: the version is hashed too. A change of it is a major version of RUN."""

WORKFLOW = Format("workflow", "1.1")
CLAIM = Format("claim of a run's name")
GROUP = Format("list of a group's runs")
EXCLUDED = Format("list of excluded files", "1.1")
CALL_PARTS = Format("list of a call's parts")
DATA_RECORD = Format("record of uploaded data")

# ---- inside a job -----------------------------------------------------------------------------------------

LAUNCH_SPEC = Format("launch specification", "1.3")
COMMIT = Format("checkpoint commit")
MANIFEST = Format("checkpoint manifest")
SHARD_FILE = Format("checkpoint shard")
"""Its file begins with ``smlshrd`` and the major version; a minor version adds members of the header."""

OUTCOME = Format("outcome file", "1.1")
HOST_OUTCOME = Format("outcome file of one host")

# ---- data -------------------------------------------------------------------------------------------------

SHARDS = Format("shard list")
"""Which files each host reads, in the channel that carries the lists."""

SHARD_INDEX = Format("index of packed shards")

# ---- the endpoint's state directory: docs/state.md --------------------------------------------------------

JOBS_DATABASE = Format("database of jobs")
PIPELINES_DATABASE = Format("database of pipelines")
METRICS_DATABASE = Format("database of metrics")
OBJECTS_DATABASE = Format("database of objects")
ENDPOINT = Format("address of the local endpoint")
CREDENTIALS = Format("endpoint's credentials")
