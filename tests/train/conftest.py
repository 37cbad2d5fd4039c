from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from smlaunch.local.endpoint import Endpoint
from tests.local.client import EndpointClient


@pytest.fixture(scope="package")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A boto3 client of an endpoint's S3, with a bucket ``tests``."""
    with Endpoint(tmp_path_factory.mktemp("endpoint"), isolation="plain") as info:
        yield EndpointClient(info).s3
