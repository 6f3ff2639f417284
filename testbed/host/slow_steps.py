"""Names a step of a start that takes long, so that no start waits without a line.

Each step has a limit of its own: a subprocess, a lock, a broker or a probe that does not answer in
time ends the start with one line.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("fairbed.start")

SLOW_S = 5.0
"""Time after which a step is named, seconds; each takes less on an idle machine."""


@contextmanager
def named_if_slow(
    what: str | Callable[[], str],
    limit_s: float | None = None,
    *,
    after_s: float = SLOW_S,
    report: Callable[[str], object] = _log.warning,
) -> Iterator[None]:
    """Write one line if the block takes long.

    Args:
        what: What the start waits for, or a function that returns it.
        limit_s: Longest wait, seconds; None: it is not known.
        after_s: Time after which the line is written, seconds.
        report: Receives the line, in another thread.
    """

    def name() -> None:
        text = what if isinstance(what, str) else what()
        most = "" if limit_s is None else f", at most {limit_s:g} s"
        report(f"start: waits for {text}, for {after_s:g} s so far{most}")

    timer = threading.Timer(after_s, name)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
