"""Where to launch: a region, or an endpoint that speaks the same API. Everything behind it is made late.

A target knows how to reach the services and how often to ask them; it does not know what runs there. The
same code serves a region and the local endpoint: they differ in these values only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from smlaunch.errors import AccountError
from smlaunch.ports import (
    ControlPlane,
    Identity,
    LogReader,
    ObjectStorage,
    Orchestrators,
    Quotas,
    Transfer,
)
from smlaunch.runs.follow import Cadence

if TYPE_CHECKING:
    from smlaunch.planning.surroundings import EndpointFacts
    from smlaunch.runs.owners import Owners

Kind = Literal["aws", "local"]


REGION_CADENCE = Cadence(first=2.0, longest=20.0, factor=1.5, settle=6.0, patience=900.0)
"""A job takes minutes to start and DescribeTrainingJob shares the account's rate: ask seldom. CloudWatch
shows a line some seconds after it was written."""

ENDPOINT_CADENCE = Cadence(first=0.015, longest=0.25, factor=1.5, settle=0.0, patience=5.0, pace=0.02)
"""On loopback an answer costs about 4 ms of this machine's CPU, and the log is written before the state. What
capacity there is, is this machine: it is there, or was taken away on purpose for a moment."""


class Standing(NamedTuple):
    """An endpoint's address and its key."""

    url: str
    access_key: str
    secret_key: str


@dataclass(frozen=True)
class Target:
    """Made by ``Target.region`` or ``Target.endpoint``. The ports are opened on first use and kept.

    ``account``, ``role`` and ``bucket``: what is known without asking; None is found out when it is needed.
    """

    kind: Kind
    region_name: str
    cadence: Cadence
    clients: Any = field(repr=False)
    """A botocore session, or anything with its ``create_client``."""
    url: str | None = None
    account: str | None = None
    role: str | None = None
    bucket: str | None = None
    facts: EndpointFacts | None = None
    hurried: bool = False
    """For what would only be told beside: a service that does not answer at once is not waited for."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    stands: Callable[[], Standing] | None = field(default=None, repr=False)
    """Where an endpoint is now, that may be started anew at another address; asked before each request."""

    @classmethod
    def region(
        cls,
        region: str | None = None,
        profile: str | None = None,
        session: Any = None,
    ) -> Target:
        """A region of AWS, by the usual credential chain (``session``: a boto3 or botocore session to use).

        Raises AccountError when no region is named anywhere, or the profile does not exist.
        """
        import botocore.session
        from botocore.exceptions import BotoCoreError

        core = getattr(session, "_session", session)
        if core is None:
            core = botocore.session.Session(profile=profile)
        try:
            name = region or getattr(session, "region_name", None) or core.get_config_variable("region")
        except BotoCoreError as error:
            raise AccountError(f"{error}; name an existing one with --profile or AWS_PROFILE") from error
        name = name or os.environ.get("AWS_REGION")
        if not name:
            raise AccountError(
                "no AWS region is set: give --region, or set AWS_REGION, or run `aws configure`; "
                "to run on this machine without AWS, add --local"
            )
        return cls("aws", str(name), REGION_CADENCE, core, environment=dict(os.environ))

    @classmethod
    def endpoint(
        cls,
        url: str,
        region: str,
        access_key: str,
        secret_key: str,
        *,
        account: str | None = None,
        role: str | None = None,
        bucket: str | None = None,
        facts: EndpointFacts | None = None,
        stands: Callable[[], Standing] | None = None,
    ) -> Target:
        """An endpoint that speaks the SageMaker API at ``url``, with its own credentials.

        The user's AWS profile, configuration files and proxies do not concern it and are not read.
        """
        import botocore.session

        nothing = (None, None, None, None)
        devnull = (None, None, os.devnull, None)
        core = botocore.session.Session(
            session_vars={"profile": nothing, "config_file": devnull, "credentials_file": devnull}
        )
        core.set_credentials(access_key, secret_key)
        target = cls("local", region, ENDPOINT_CADENCE, core, url, account, role, bucket, facts)
        return target if stands is None else replace(target, stands=stands)

    @property
    def where(self) -> str:
        """For sentences: where a run is."""
        return f"the local endpoint at {self.url}" if self.kind == "local" else self.region_name

    @cached_property
    def control(self) -> ControlPlane:
        from smlaunch.runs.aws import SageMaker

        return SageMaker(self.client("sagemaker"))

    @cached_property
    def owners(self) -> Owners:
        """Whose the buckets have to be."""
        from smlaunch.runs.owners import Owners

        return Owners(lambda: self.account or self.identity.caller()[0])

    @cached_property
    def storage(self) -> ObjectStorage:
        """Buckets of the caller, and of whom ``owners`` names: others are neither read nor written."""
        from smlaunch.runs.aws import S3

        return S3(self.s3(), must_exist=self.kind == "aws")

    @cached_property
    def inputs(self) -> ObjectStorage:
        """As ``storage``, but buckets whose owner nobody has named are read, whosever they are."""
        from smlaunch.runs.aws import S3

        return S3(self.s3(anyones=True))

    @cached_property
    def transfer(self) -> Transfer:
        return self._transfers(self.storage, anyones=False)

    @cached_property
    def inputs_transfer(self) -> Transfer:
        """To ``transfer`` what ``inputs`` is to ``storage``."""
        return self._transfers(self.inputs, anyones=True)

    def _transfers(self, storage: ObjectStorage, *, anyones: bool) -> Transfer:
        from smlaunch.data.transfer import Quick, Transfers
        from smlaunch.runs.aws_parts import S3Parts

        client = self.s3(anyones=anyones)

        def quick() -> Quick | None:
            try:
                from smlaunch.data.transfer_obstore import by_obstore
            except ImportError:  # the extra `data` is not installed
                return None
            return by_obstore(client, self.clients, self.owner_for(anyones))

        return Transfers(storage, S3Parts(client), quick)

    def owner_for(self, anyones: bool = False) -> Callable[[str, str], str | None]:
        """Of an operation on a bucket: the account to name in the request; None where it may be anybody's."""
        from smlaunch.runs.owners import owner_for

        return partial(owner_for, self.owners, anyones)

    def s3(self, *, anyones: bool = False) -> Any:
        """A botocore client of S3, whose requests name the bucket's owner. ``anyones``: as for ``inputs``."""
        from smlaunch.runs.owners import installed

        return installed(self.client("s3"), self.owners, anyones=anyones)

    @cached_property
    def logs(self) -> LogReader:
        from smlaunch.runs.aws import CloudWatchLogs

        return CloudWatchLogs(self.client("logs"))

    @cached_property
    def orchestrators(self) -> Orchestrators:
        from smlaunch.runs.orchestrators import Executions

        return Executions(self.client)

    @cached_property
    def quotas(self) -> Quotas:
        from smlaunch.runs.aws import ServiceQuotas

        return ServiceQuotas(self.client("service-quotas"))

    @cached_property
    def identity(self) -> Identity:
        from smlaunch.runs.aws import Caller

        return Caller(lambda: self.client("sts"), lambda: self.client("iam"))

    def client(self, service: str) -> Any:
        """A botocore client. Its own retries cover seconds of trouble; ``retry`` goes on from there."""
        from botocore.config import Config

        attempts = 1 if self.hurried else 5 if self.url is None else 2
        settings: dict[str, Any] = {
            "retries": {"mode": "standard", "total_max_attempts": attempts},
            "connect_timeout": 3 if self.hurried else 10,
        }
        if self.hurried:
            settings["read_timeout"] = 10
        if self.url is not None:
            settings["proxies"] = {}
            settings["s3"] = {"addressing_style": "path"}
        from smlaunch.runs.aws import opened

        client = opened(self.clients, service, self.region_name, self.url, Config(**settings))
        if self.stands is not None:
            client.meta.events.register("before-sign", self._redirect)
        return client

    def _redirect(self, request: Any, **_: Any) -> None:
        """Sends a request to where the endpoint is now, before it is signed."""
        assert self.stands is not None
        now = self.stands()
        request.url = urlsplit(request.url)._replace(netloc=urlsplit(now.url).netloc).geturl()
        credentials = self.clients.get_credentials()
        credentials.access_key, credentials.secret_key = now.access_key, now.secret_key
