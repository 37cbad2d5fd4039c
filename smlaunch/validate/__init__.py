"""The validator that botocore lacks: every limit of the API model, and the rules its prose adds.

Pure. The client checks its requests with it before anything is sent, and the local endpoint checks what it
receives with the very same tables, so that a job which passes here is not refused there.
"""

from __future__ import annotations

from smlaunch.validate.model import check, operations
from smlaunch.validate.violation import Violation, aws_message

__all__ = ["Violation", "aws_message", "check", "operations"]
