"""Why a device cannot be had on this machine: asked only after it could not."""

import os

from anyio.to_thread import run_sync

from testbed.backends.cells import try_groups
from testbed.backends.errors import BackendError
from testbed.backends.network.probe import probe
from testbed.guest.plan import Plan


async def obstacle(plan: Plan) -> str | None:
    """Return what stands in the way and what to do, in one line; None if nothing is found."""
    if os.geteuid() != 0:
        return (
            f"needs root, got user id {os.geteuid()}; put sudo in front, or for the processor "
            "alone, without link and memory, use --backend process"
        )
    if plan.has_link:
        support = await probe()
        if support.problem is not None:
            return _for_us(support.problem)
        if plan.is_delayed and support.delay_problem is not None:
            return support.delay_problem
    if plan.is_limited:
        try:
            await run_sync(try_groups)
        except BackendError as exc:
            return _for_us(str(exc))
    return None


def _for_us(problem: str) -> str:
    """Return a problem without the advice to take another backend, which is not ours to take."""
    first, *advice = problem.split("; ")
    good = [words for words in advice if "backend" not in words]
    return "; ".join([first, *(good or ["be root of this machine"])])
