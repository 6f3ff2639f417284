"""A clock that tests move."""


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def now(self) -> float:
        return self.now_s
