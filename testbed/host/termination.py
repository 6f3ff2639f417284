"""Clean-up of a command that a signal ends.

SIGTERM and SIGHUP end a process without its `finally` blocks, which remove files and end children.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGHUP)

STOPPING = (signal.SIGINT, *ENDING)
"""The signals that stop a command."""

AGAIN_S = 0.01
"""Time after which a signal is sent again that found the process in an import."""


class Terminated(SystemExit):
    """A signal ends this process; a SystemExit, because event loops raise no other exception."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = signal.Signals(number)


@contextmanager
def unwound_by_signals() -> Iterator[None]:
    """Run all `finally` blocks within at SIGTERM or SIGHUP, then end by that signal.

    Later ones are ignored, so that they do not interrupt the clean-up. A signal that was ignored
    before (`nohup`) stays ignored. Call it in the main thread.
    """
    before = {number: signal.getsignal(number) for number in ENDING}
    handled = [number for number in ENDING if before[number] is not signal.SIG_IGN]

    def on_signal(number: int, _: FrameType | None) -> None:
        for other in handled:
            signal.signal(other, signal.SIG_IGN)
        raise Terminated(number)

    for number in handled:
        signal.signal(number, on_signal)
    try:
        yield
    except Terminated as ended:
        sys.stderr.write(f"fairbed: ended by {ended.number.name}\n")
        sys.stderr.flush()
        signal.signal(ended.number, signal.SIG_DFL)
        os.kill(os.getpid(), ended.number)
        raise
    finally:
        for number in handled:
            signal.signal(number, before[number])


@contextmanager
def raised_by_signals() -> Iterator[None]:
    """Raise `Terminated` at each signal that stops a command, Ctrl-C included.

    A command that has not begun its work ends so without a traceback, and its `finally` blocks run.
    A signal that was ignored before (`nohup`) stays ignored. During an import nothing is raised,
    as a module in C may crash on it: the signal comes again when the import is over. Call it in
    the main thread.
    """
    before = {number: signal.getsignal(number) for number in STOPPING}
    handled = [number for number in STOPPING if before[number] is not signal.SIG_IGN]

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not _is_importing(frame):
            raise Terminated(number)
        again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    for number in handled:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) is on_signal:
                signal.signal(number, before[number])


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a frame, or one that has called it, imports a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def default_signals() -> None:
    """Let the signals that stop a command do what they do in any Python program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_restored() -> Iterator[None]:
    """Let the signals that stop a command do after it what they did before."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and handler is not signal.getsignal(number):
                signal.signal(number, handler)
