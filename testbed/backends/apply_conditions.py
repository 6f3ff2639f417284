"""Changes the conditions of running devices of the process backend.

processor      gauges in a file that the device maps; effective within `launcher.SPEED_POLL_S`
link           a request to the proxy that shapes it
frozen         see `testbed.backends.agent_pool`
"""

import math
from collections.abc import Mapping

from fairbed.testbed.backends.agent_pool import AgentPool
from fairbed.testbed.backends.base import DeviceSpec
from fairbed.testbed.backends.gauges import (
    CLOCK_RATIO,
    IS_WILLING,
    SPEED_RATIO,
    TEMPERATURE_CELSIUS,
    Gauge,
)
from fairbed.testbed.backends.proxy.links import ShapedLinks
from fairbed.testbed.backends.proxy.protocol import LinkState, Shape
from fairbed.testbed.emulation.conditions import Conditions
from fairbed.testbed.errors import BackendError


class ConditionApplier:
    """Applies conditions to the agents and the proxies of the process backend."""

    def __init__(self, pool: AgentPool, links: ShapedLinks) -> None:
        self._pool, self._links = pool, links
        self._ports = links.ports
        self._states: dict[str, LinkState] = {}

    async def apply(self, conditions: Mapping[str, Conditions]) -> None:
        """Change devices; return when all changes are in effect.

        Raises:
            BackendError: The backend cannot emulate a condition (nothing was changed), or a helper
                process has ended.
        """
        for name, wanted in conditions.items():
            self._check(self._pool.spec(name), wanted)
        for name, wanted in conditions.items():
            write_gauges(self._pool.gauges[name], self._pool.spec(name), wanted)
        frozen = {name for name, wanted in conditions.items() if wanted.outage == "frozen"}
        await self._pool.freezer.thaw(conditions.keys() - frozen)
        await self._change_links(conditions)
        await self._pool.freezer.freeze(frozen)

    def _check(self, spec: DeviceSpec, wanted: Conditions) -> None:
        check_speed(spec, wanted)
        shape = wanted.shape or Shape()
        if (problem := proxy_problem(spec.name, shape)) is not None:
            raise BackendError(problem)
        is_shaped = not shape.is_plain or wanted.outage in ("coverage", "unplugged")
        if is_shaped and spec.name not in self._ports:
            raise BackendError(
                f"{spec.name}: must have a link of its own for {wanted.outage or shape}, got none; "
                "give it a link in [[fleet]]"
            )

    async def _change_links(self, conditions: Mapping[str, Conditions]) -> None:
        changed: dict[str, LinkState] = {}
        for name, wanted in conditions.items():
            if name in self._ports:
                state = link_state(wanted)
                if state != self._states.get(name):
                    changed[name] = state
        await self._links.change(changed)
        self._states.update(changed)


def link_state(wanted: Conditions) -> LinkState:
    """Return the state of a proxied link under these conditions."""
    return LinkState(
        shape=wanted.shape or Shape(),
        is_covered=wanted.outage != "coverage",
        is_plugged=wanted.outage != "unplugged",
    )


def write_gauges(gauge: Gauge, spec: DeviceSpec, wanted: Conditions) -> None:
    """Write the speed, clock, temperature and willingness that a device reads."""
    if spec.device is not None:
        at_most = float(spec.device.engine_threads)  # all cores that its engine can use
        gauge[SPEED_RATIO] = at_most if wanted.speed_ratio is None else wanted.speed_ratio
    celsius = wanted.temperature_celsius
    gauge[CLOCK_RATIO] = wanted.clock_ratio
    gauge[TEMPERATURE_CELSIUS] = math.nan if celsius is None else celsius
    gauge[IS_WILLING] = float(wanted.is_willing)


def check_speed(spec: DeviceSpec, wanted: Conditions) -> None:
    """Check that a device can be emulated at the speed of these conditions.

    Raises:
        BackendError: The device has no profile, or the speed is not positive and finite.
    """
    speed = wanted.speed_ratio
    if speed is None:
        return
    if spec.device is None:
        raise BackendError(
            f"{spec.name}: must have a profile to be slowed, got none and speed_ratio {speed}; "
            "give it a profile in [[fleet]]"
        )
    if not 0.0 < speed < math.inf:
        raise BackendError(
            f"{spec.name}: speed_ratio must be > 0 and finite, got {speed}; use outage 'frozen' "
            "for a device that must not compute"
        )


def proxy_problem(name: str, shape: Shape) -> str | None:
    """Return why a TCP proxy cannot emulate a link; None if it can."""
    if shape.loss_ratio > 0.0:
        return (
            f"{name}: the process backend relays TCP and cannot drop packets, got loss_ratio "
            f'{shape.loss_ratio:g}; use emulation.backend = "namespace", or a link without loss'
        )
    if shape.codel_target_s is not None:
        return (
            f"{name}: the process backend relays TCP and has drop-tail queues only, got fq_codel; "
            'use emulation.backend = "namespace", or queue = "drop-tail"'
        )
    return None
