"""Times in responses."""

from __future__ import annotations


class Timestamp(float):
    """Seconds since the epoch in a response: JSON has the number, CBOR a tag for times, XML a date."""
