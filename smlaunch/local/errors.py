"""What a service of the local endpoint raises: an error that an AWS client can parse."""

from __future__ import annotations


class ApiError(Exception):
    """An error answer.

    ``code`` is what boto3 shows as ``error.response["Error"]["Code"]`` and what it picks the typed exception
    by, so it is the model's own name of the error (``ResourceInUse``, ``NoSuchKey``). ``status`` is the HTTP
    status. ``details`` become further elements of an XML error (S3's ``BucketName``, ``Key`` ...).
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
