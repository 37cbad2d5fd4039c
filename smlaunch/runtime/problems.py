"""The two ways in which a host ends before its ranks have run."""


class Unusable(Exception):
    """The job cannot run as it was sent. The message is one line: what is wrong, where, and what to do."""

    exit_code = 2


class Stopped(BaseException):
    """A signal asked this host to stop while it was still getting ready.

    Not an Exception, so that no ``except Exception`` on the way can take it for a failure of its own.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
        self.exit_code = 128 + number
