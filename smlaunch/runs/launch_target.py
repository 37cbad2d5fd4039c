"""Where a job is launched: a region, or an endpoint with the same API. Clients are created on first use.

A target knows how to reach the services and how often to poll them, and not what runs there. The same code
serves a region and the local endpoint: they differ in these values only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn
from urllib.parse import urlsplit
from weakref import WeakSet

from smlaunch.aws.interfaces import (
    ControlPlane,
    Identity,
    LogReader,
    ObjectStorage,
    Orchestrators,
    ProductList,
    Quotas,
    Transfer,
)
from smlaunch.catalog.regions import find_region_mistake
from smlaunch.discovery.config_files import find_default_region
from smlaunch.errors import AccountError, JobError, Problem, wrong_type_error
from smlaunch.runs.job_poller import Polling

if TYPE_CHECKING:
    from smlaunch.aws.bucket_owners import BucketOwners
    from smlaunch.aws.credential_source import CredentialSource
    from smlaunch.facts.discovered_facts import EndpointFacts
    from smlaunch.facts.team_settings import Default

TargetKind = Literal["aws", "local"]

_OPEN_CLIENTS: WeakSet[Any] = WeakSet()


def _close_inherited_connections() -> None:
    """A forked process must not read responses to its parent's requests: its clients connect anew."""
    for client in list(_OPEN_CLIENTS):
        client.close()


os.register_at_fork(after_in_child=_close_inherited_connections)


PRICE_LIST_REGION = "us-east-1"
"""One of three regions that answer for AWS's price list, which is that of all regions of the partition
(Price List API, endpoints)."""

NO_REGION = (
    "no AWS region is set: give target=Target.region('eu-west-1') or another one, or set AWS_REGION, or run "
    "`aws configure`; to run on this machine without AWS, give target=local_target()"
)
"""For a Python program; a command says it in its own words."""

REGION_POLLING = Polling(
    initial_seconds=2.0, max_seconds=20.0, backoff_factor=1.5, settle_seconds=6.0, give_up_seconds=900.0
)
"""A job takes minutes to start and DescribeTrainingJob shares the account's request rate: poll seldom.
CloudWatch shows a line some seconds after it was written."""

ENDPOINT_POLLING = Polling(
    initial_seconds=0.015,
    max_seconds=0.25,
    backoff_factor=1.5,
    settle_seconds=0.0,
    give_up_seconds=5.0,
    time_scale=0.02,
)
"""On loopback a response costs about 4 ms of this machine's CPU, and the log is written before the state. The
capacity is this machine, which is there unless a fault plan takes it away."""


class EndpointAddress(NamedTuple):
    """An endpoint's address and its key."""

    url: str
    access_key: str
    secret_key: str


class _Boto3Session:
    """A boto3 session, with those methods of botocore's session that a target calls: boto3 does not offer the
    botocore session that it holds."""

    def __init__(self, session: Any) -> None:
        self._boto3 = session

    def create_client(self, service_name: str, **options: Any) -> Any:
        return self._boto3.client(service_name, **options)

    def get_credentials(self) -> Any:
        return self._boto3.get_credentials()

    def has_own_keys(self) -> bool:
        """Return whether the caller gave the keys to the session."""
        from botocore.exceptions import BotoCoreError

        try:
            return getattr(self._boto3.get_credentials(), "method", None) == "explicit"
        except BotoCoreError:
            return False

    @property
    def configuration(self) -> Any:
        """A botocore session with the same configuration."""
        import botocore.session

        profile = self._boto3.profile_name
        # boto3 says "default" also where no profile has that name, which botocore refuses.
        return botocore.session.Session(profile=None if profile == "default" else profile)

    def get_config_variable(self, name: str) -> Any:
        if name == "region":
            return self._boto3.region_name
        return self.configuration.get_config_variable(name)


class _EndpointSession:
    """A botocore session with an endpoint's key, made when a client is: botocore is slow to import."""

    def __init__(self, locate_endpoint: Callable[[], EndpointAddress]) -> None:
        self._locate_endpoint = locate_endpoint

    @cached_property
    def _botocore_session(self) -> Any:
        from smlaunch.aws.model_loader import create_session

        no_value = (None, None, None, None)
        no_file = (None, None, os.devnull, None)
        session = create_session(
            session_vars={"profile": no_value, "config_file": no_file, "credentials_file": no_file}
        )
        address = self._locate_endpoint()
        session.set_credentials(address.access_key, address.secret_key)
        return session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._botocore_session, name)


def _require_existing_profile(session: Any) -> None:
    """Raise AccountError if the profile of a botocore session is in none of its files, or they cannot be
    read. The profile is an option's, or that of AWS_PROFILE."""
    from botocore.exceptions import BotoCoreError

    from smlaunch.text.did_you_mean import did_you_mean

    try:
        profile, known_profiles = session.profile, session.available_profiles
    except BotoCoreError as error:
        raise AccountError(f"the AWS configuration cannot be used: {error}; correct it") from error
    if profile is None or profile in known_profiles:
        return
    names = [str(session.get_config_variable(name)) for name in ("config_file", "credentials_file")]
    files = " and ".join(name for name in names if name != os.devnull) or os.devnull
    raise AccountError(
        f"there is no AWS profile {profile!r} in {files}"
        + (did_you_mean(profile, known_profiles) if known_profiles else "; `aws configure` makes one")
    )


@dataclass(frozen=True)
class Target:
    """A region or an endpoint, made by ``Target.region``, ``endpoint`` or ``located_endpoint``."""

    kind: TargetKind
    region_name: str
    polling: Polling = field(repr=False)
    session: Any = field(repr=False)
    """A botocore session, or any object with its ``create_client``."""
    account: str | None = None
    """None is found out when needed, as for role and bucket."""
    role: str | None = None
    bucket: str | None = None
    facts: EndpointFacts | None = field(default=None, repr=False)
    fail_fast: bool = field(default=False, repr=False)
    """Do not wait for a service that is slow to respond: the result is optional."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    locate_endpoint: Callable[[], EndpointAddress] | None = field(default=None, repr=False)
    """Returns the current address of an endpoint, which may start with the first request, and restart at
    another address. Called before each request. None for a region."""
    state_dir: Path | None = field(default=None, repr=False)
    """The directory of this machine's endpoint; None for a region."""
    region_default: Default | None = field(default=None, repr=False)
    """The default that names the region; None where the caller or the AWS configuration does."""
    has_local_alternative: bool = field(default=True, repr=False)
    """What the target is for can be done on this machine too, as errors say."""

    @classmethod
    def region(
        cls,
        region: str | None = None,
        profile: str | None = None,
        session: Any = None,
    ) -> Target:
        """Return a region of AWS as a target: where runs are launched. botocore finds the credentials.

        ``region`` and ``profile`` override the configured ones; a region that nothing else names is the
        default of the team's configuration file (docs/defaults.md). ``session`` is a boto3 or botocore
        session to use instead of a new one; with it, ``profile`` has no effect.
        Raises AccountError when no region is configured, or the profile does not exist, and JobError for a
        name that no region has, or one without SageMaker.
        """
        from botocore.exceptions import BotoCoreError

        from smlaunch.aws.model_loader import create_session

        if session is None:
            session = create_session(profile=profile)
            _require_existing_profile(session)
        elif not hasattr(session, "create_client"):  # boto3's: only botocore's has this method
            session = _Boto3Session(session)  # with the methods of botocore's
        try:
            region_name = region or session.get_config_variable("region") or os.environ.get("AWS_REGION")
        except BotoCoreError as error:
            raise AccountError(f"the AWS configuration cannot be used: {error}; correct it") from error
        region_default = None if region_name else find_default_region(os.environ)
        if region_default is not None:
            region_name = region_default.value
        if not region_name:
            raise AccountError(NO_REGION)
        if (mistake := find_region_mistake(str(region_name))) is not None:
            place = "region of the AWS configuration" if region_default is None else region_default.origin
            raise JobError([Problem("region" if region else place, mistake)])
        return cls(
            kind="aws",
            region_name=str(region_name),
            polling=REGION_POLLING,  # the pauses between two requests about a job
            session=session,
            environment=dict(os.environ),
            region_default=region_default,
        )

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
    ) -> Target:
        """Return an endpoint with the SageMaker API at ``url`` and its own credentials.

        The user's AWS profile, configuration files and proxies are not used.
        """
        address = EndpointAddress(url, access_key, secret_key)
        return cls.located_endpoint(
            lambda: address, region, account=account, role=role, bucket=bucket, facts=facts
        )

    @classmethod
    def located_endpoint(
        cls,
        locate_endpoint: Callable[[], EndpointAddress],
        region: str,
        *,
        account: str | None = None,
        role: str | None = None,
        bucket: str | None = None,
        facts: EndpointFacts | None = None,
        state_dir: Path | None = None,
    ) -> Target:
        """Return an endpoint that is asked for its address before each request; else as ``endpoint``."""
        return cls(
            kind="local",
            region_name=region,
            polling=ENDPOINT_POLLING,
            session=_EndpointSession(locate_endpoint),
            account=account,
            role=role,
            bucket=bucket,
            facts=facts,
            locate_endpoint=locate_endpoint,
            state_dir=state_dir,
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it holds connections, and an endpoint belongs to a process."""
        raise TypeError(f"a Target cannot be pickled or copied; call {self.python_call} in the other process")

    @property
    def url(self) -> str | None:
        """The current address of an endpoint, which is started if it has to be; None for a region."""
        return None if self.locate_endpoint is None else self.locate_endpoint().url

    @property
    def location(self) -> str:
        """The target in words, for messages."""
        return f"the local endpoint at {self.url}" if self.kind == "local" else self.region_name

    @property
    def short_name(self) -> str:
        """The target in one word. Starts no endpoint."""
        return "local" if self.kind == "local" else self.region_name

    @property
    def python_call(self) -> str:
        """How a program makes it again."""
        return "smlaunch.local_target()" if self.kind == "local" else "smlaunch.Target.region()"

    @property
    def cli_flag(self) -> str:
        """The option with which a command uses this machine, with a space in front; empty for a region."""
        return " --local" if self.kind == "local" else ""

    def local_path(self, uri: str | None) -> Path | None:
        """Return the file or folder of this machine that an S3 address of its endpoint names, such as an
        outcome's ``model_artifacts``; None where there is none, and for a region."""
        if self.state_dir is None or not uri or not uri.startswith("s3://"):
            return None
        path = self.state_dir / "s3" / uri[len("s3://") :]
        return path if path.exists() else None

    @property
    def credential_source(self) -> CredentialSource:
        """Where the caller's credentials come from, for messages."""
        from botocore.exceptions import BotoCoreError

        from smlaunch.aws.credential_source import CredentialSource, find_credential_source

        if self.kind == "local":
            return CredentialSource("arguments")
        session = self.session
        if isinstance(session, _Boto3Session):
            if session.has_own_keys():
                return CredentialSource("arguments")
            session = session.configuration
        try:
            source = find_credential_source(session, self.environment)
        except (AttributeError, BotoCoreError):  # a session of another type, or an unreadable configuration
            source = CredentialSource("none")
        return source._replace(has_local_alternative=self.has_local_alternative)

    @cached_property
    def control_plane(self) -> ControlPlane:
        from smlaunch.aws.botocore_client import SageMakerControlPlane

        return SageMakerControlPlane(self.client("sagemaker"))

    @cached_property
    def bucket_owners(self) -> BucketOwners:
        """Accounts that the buckets have to belong to."""
        from smlaunch.aws.bucket_owners import BucketOwners

        return BucketOwners(lambda: self.account or self.identity.get_caller_identity()[0])

    @cached_property
    def storage(self) -> ObjectStorage:
        """Buckets of the caller and of the accounts in ``bucket_owners``. Other buckets are neither read nor
        written."""
        from smlaunch.aws.botocore_client import S3Storage

        return S3Storage(self.owner_checked_s3_client(), must_exist=self.kind == "aws")

    @cached_property
    def input_storage(self) -> ObjectStorage:
        """As ``storage``, but buckets without a known owner may be read."""
        from smlaunch.aws.botocore_client import S3Storage

        return S3Storage(self.owner_checked_s3_client(allow_unknown_owner=True))

    @cached_property
    def transfer(self) -> Transfer:
        return self._build_transfer(self.storage, allow_unknown_owner=False)

    @cached_property
    def input_transfer(self) -> Transfer:
        """Transfers for ``inputs``, as ``transfer`` is for ``storage``."""
        return self._build_transfer(self.input_storage, allow_unknown_owner=True)

    def _build_transfer(self, storage: ObjectStorage, *, allow_unknown_owner: bool) -> Transfer:
        from smlaunch.aws.s3_multipart import S3Multipart
        from smlaunch.data.s3_transfer import FastTransfer, S3Transfer

        client = self.owner_checked_s3_client(allow_unknown_owner=allow_unknown_owner)

        def open_fast_transfer() -> FastTransfer | None:
            try:
                from smlaunch.data.obstore_transfer import open_obstore
            except ImportError:  # the extra `data` is not installed
                return None
            return open_obstore(client, self.session, self.bucket_owner_check(allow_unknown_owner))

        return S3Transfer(storage, S3Multipart(client), open_fast_transfer)

    def bucket_owner_check(self, allow_unknown_owner: bool = False) -> Callable[[str, str], str | None]:
        """Return a function of operation and bucket: the account to state in the request, or None for any."""
        from smlaunch.aws.bucket_owners import owner_required_for_request

        return partial(owner_required_for_request, self.bucket_owners, allow_unknown_owner)

    def owner_checked_s3_client(self, *, allow_unknown_owner: bool = False) -> Any:
        """Return an S3 client whose requests state the bucket's owner.

        ``allow_unknown_owner``: see ``inputs``.
        """
        from smlaunch.aws.bucket_owners import enforce_bucket_owners

        return enforce_bucket_owners(
            self.client("s3"), self.bucket_owners, allow_unknown_owner=allow_unknown_owner
        )

    @cached_property
    def logs(self) -> LogReader:
        from smlaunch.aws.botocore_client import CloudWatchLogs

        return CloudWatchLogs(self.client("logs"))

    @cached_property
    def orchestrators(self) -> Orchestrators:
        from smlaunch.runs.orchestrator_client import OrchestratorClient

        return OrchestratorClient(self.client)

    @cached_property
    def quotas(self) -> Quotas:
        from smlaunch.aws.botocore_client import ServiceQuotas

        return ServiceQuotas(self.client("service-quotas"))

    @cached_property
    def product_list(self) -> ProductList:
        from smlaunch.aws.botocore_client import PriceListService

        return PriceListService(self.client("pricing", PRICE_LIST_REGION))

    @cached_property
    def identity(self) -> Identity:
        from smlaunch.aws.botocore_client import StsIdentity

        return StsIdentity(lambda: self.client("sts"), lambda: self.client("iam"))

    def client(self, service: str, region: str | None = None) -> Any:
        """Return a botocore client for a service of this target, an AWS region or a local endpoint. Its own
        retries cover seconds of failure; ``call_with_retries`` covers longer ones.

        ``region``: another one, for a service that few regions have.

        With ``fail_fast``, a slow service is given up soon: its answer is optional.
        """
        from botocore.config import Config

        from smlaunch.aws.botocore_client import create_client

        is_local_endpoint = self.kind == "local"
        client_config: dict[str, Any] = {"connect_timeout": 10}  # timeouts are in seconds
        max_attempts = 2 if is_local_endpoint else 5
        if self.fail_fast:
            client_config = {"connect_timeout": 3, "read_timeout": 10}
            max_attempts = 1
        client_config["retries"] = {"mode": "standard", "total_max_attempts": max_attempts}
        if is_local_endpoint:
            client_config["proxies"] = {}  # a proxy could not reach it
            client_config["s3"] = {"addressing_style": "path"}  # buckets have no host names there
        client = create_client(
            self.session, service, region or self.region_name, self.url, Config(**client_config)
        )
        _OPEN_CLIENTS.add(client)
        if is_local_endpoint:  # it may restart at another address
            client.meta.events.register("before-sign", self._redirect_to_current_address)
        return client

    def _redirect_to_current_address(self, request: Any, **_: Any) -> None:
        """Send a request to the endpoint's current address. Called before the request is signed."""
        assert self.locate_endpoint is not None
        address = self.locate_endpoint()
        request.url = urlsplit(request.url)._replace(netloc=urlsplit(address.url).netloc).geturl()
        credentials = self.session.get_credentials()
        credentials.access_key, credentials.secret_key = address.access_key, address.secret_key


def require_target(target: object) -> None:
    """Raise JobError for an argument that is neither a target nor None."""
    if target is not None and not isinstance(target, Target):
        raise wrong_type_error(target, "a Target", "local_target()")
