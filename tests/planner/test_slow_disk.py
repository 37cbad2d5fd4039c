"""A File channel on a volume gets a warning where the network would be faster, and only there."""

from __future__ import annotations

from smlaunch.catalog import instances
from smlaunch.planner.input_channels import slow_disk_warning
from smlaunch.storage.read_time_estimates import DataShare, HostProfile


def disk_warning(instance: str, gigabytes: float, files: int = 1000) -> str | None:
    return slow_disk_warning(
        DataShare(gigabytes * 1e9, files), HostProfile(instances.find_instance_type(instance))
    )


def test_much_data_on_a_volume_is_warned_of() -> None:
    text = disk_warning("ml.p3.8xlarge", 200)
    assert text is not None
    assert text.startswith(
        "mode File copies 200 GB to a volume of 128 to 250 MiB/s before training begins (13 to"
    )
    assert "every epoch reads it from there at that speed" in text
    assert "every epoch" not in str(disk_warning("ml.p3.16xlarge", 200)), "its memory holds it"


def test_little_data_nvme_and_unknown_types_are_not() -> None:
    assert disk_warning("ml.p3.8xlarge", 5) is None
    assert disk_warning("ml.g5.12xlarge", 500) is None
    assert disk_warning("ml.new.8xlarge", 500) is None


def test_where_the_requests_take_longer_than_the_disk_it_is_not_the_disks_fault() -> None:
    assert disk_warning("ml.p3.8xlarge", 20, files=50_000_000) is None
