"""Runs one program to its end, and reports a failure in one line."""

import os
import sys
from collections.abc import Sequence

import anyio

from fairbed.testbed.errors import BackendError

TIMEOUT_S = 60.0
"""Longest run time of a program, on a machine that is busy with the start of a fleet; seconds."""


async def run_program(argv: Sequence[str], stdin: bytes = b"") -> bytes:
    """Run a program with `stdin` as its input; return its stdout.

    Raises:
        BackendError: The program cannot be run, fails, or takes too long.
    """
    try:
        with anyio.fail_after(TIMEOUT_S):
            done = await anyio.run_process(argv, input=stdin, check=False)
    except FileNotFoundError as exc:
        raise BackendError(
            f"network: {argv[0]} must be installed; sudo apt-get install -y iproute2"
        ) from exc
    except (OSError, TimeoutError) as exc:
        raise BackendError(f"network: cannot run {' '.join(argv)}, {exc!r}; try again") from exc
    if done.returncode:
        reason = " ".join(done.stderr.decode(errors="replace").split())
        raise BackendError(f"network: {' '.join(argv)} failed: {reason}")
    return done.stdout


async def run_module(module: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run `python -m module PARENT_PID arguments...`; return its stdout.

    Raises:
        BackendError: The module cannot be run, fails, or takes too long.
    """
    return await run_program([sys.executable, "-m", module, str(os.getpid()), *arguments], stdin)
