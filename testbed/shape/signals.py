"""Queues signals to this process in their order, each with its sender. Linux only.

The kernel sends Ctrl-C to all processes of the terminal, including the command. A signal from
`kill` reaches only this process and must be forwarded. Python's handlers and event loops do not
distinguish the two; the kernel's `signalfd` does.
"""

import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

_FROM_KERNEL = 0x80
"""`SI_KERNEL` of asm-generic/siginfo.h: a key was pressed, or the terminal was closed."""

_SFD_NONBLOCK, _SFD_CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC
"""Equal to these flags by linux/signalfd.h."""

_SIGSET_BYTES = 128
"""sizeof(sigset_t) of glibc and musl."""

_INFO = struct.Struct("=IiiI112x")
"""signalfd_siginfo: number, errno, code, process id, and more."""


@dataclass(frozen=True, slots=True)
class ReceivedSignal:
    """One signal."""

    number: int
    is_from_kernel: bool
    """Whether the kernel sent it, to the whole process group."""
    sender: int
    """Process id; 0 is unknown."""


class Signals:
    """The queue of signals that arrive inside `held`."""

    def __init__(self, descriptor: int, mask: set[int]) -> None:
        self._descriptor = descriptor
        self.mask = mask
        """Signals that were blocked before; the command restores this mask."""

    async def receive(self) -> ReceivedSignal:
        """Wait for the next signal and return it; SIGCHLD is included."""
        while True:
            try:
                content = os.read(self._descriptor, _INFO.size)
            except BlockingIOError:
                await anyio.wait_readable(self._descriptor)
                continue
            number, _, code, sender = _INFO.unpack(content)
            return ReceivedSignal(number, code == _FROM_KERNEL, sender)


@contextmanager
def held() -> Iterator[Signals]:
    """Block signals and queue them for `receive`; enter before any thread is started.

    Signals that were ignored before (`nohup`) stay ignored, also by the command.

    Raises:
        OSError: The kernel refused.
        RuntimeError: There are other threads, which could receive the signals.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("signals must be held before a second thread is started")
    numbers = [n for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the kernel keeps no exit status
    wanted = {*numbers, signal.SIGCHLD}
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, wanted)}
    try:
        descriptor = _signalfd(wanted)
        try:
            yield Signals(descriptor, mask)
        finally:
            os.close(descriptor)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def stop_this_process() -> None:
    """Stop this process as Ctrl-Z does; return after SIGCONT.

    A SIGTSTP that is pending already merges with this one, so that the process stops once.
    """
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})


def end_by_signal(number: int) -> None:
    """End this process by the signal that ended the command, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _signalfd(numbers: set[signal.Signals]) -> int:
    bits = sum(1 << (number - 1) for number in numbers)
    mask = struct.pack("=Q", bits).ljust(_SIGSET_BYTES, b"\0")
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.signalfd(-1, mask, _SFD_NONBLOCK | _SFD_CLOEXEC)
    if descriptor < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"signalfd: {os.strerror(error)}")
    return descriptor
