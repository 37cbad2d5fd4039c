"""Errors that services of the local endpoint raise and AWS clients can parse."""

from __future__ import annotations


class ApiError(Exception):
    """An error response.

    ``code``: the error's name in the service model (``ResourceInUse``, ``NoSuchKey``); boto3 shows it as
    ``error.response["Error"]["Code"]`` and chooses the exception class by it. ``status``: HTTP status.
    ``details``: further elements of an XML error (S3's ``BucketName``, ``Key`` ...).
    """

    def __init__(self, code: str, message: str, status: int = 400, **details: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.status = status
        self.details = details

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def validation_error(message: str) -> ApiError:
    return ApiError("ValidationException", message)
