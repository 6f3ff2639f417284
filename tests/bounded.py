"""Runs the coroutine of a test in an event loop of its own, for a limited time."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

LIMIT_S = 90.0
"""Most tests take a second; devices and networks are slow on a busy machine."""

R = TypeVar("R")


def run(test: Callable[[], Awaitable[R]]) -> R:
    """Return the result of a test.

    Raises:
        TimeoutError: It takes longer than `LIMIT_S`.
    """

    async def bounded() -> R:
        with anyio.fail_after(LIMIT_S):
            return await test()

    return anyio.run(bounded)
