"""The two ways in which a host ends before its ranks have run."""


class SetupError(Exception):
    """The job cannot run as it was sent. The message is one line: what is wrong, where, and what to do."""

    exit_code = 2


class StoppedDuringSetup(BaseException):
    """A stop signal arrived while this host was preparing.

    Not an Exception, so that no ``except Exception`` can catch it.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal_number = number
        self.exit_code = 128 + number
