"""A clock that tests advance."""


class ManualClock:
    """A clock that only moves when a test sets `now_s`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def now(self) -> float:
        return self.now_s
