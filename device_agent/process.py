"""One agent as a process: its link, its signals, its end.

The console script runs it with the real host; a testbed runs it with one of its own.
"""

import asyncio
import ctypes
import logging
import signal
import sys
from collections.abc import Callable

import anyio

from fairbed.device_agent.agent import Agent
from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.engines.base import EngineError
from fairbed.device_agent.errors import AgentError, ConfigError
from fairbed.device_agent.host import Host
from fairbed.wire.transport.base import KEEPALIVE_S, Transport, Will
from fairbed.wire.transport.client import MqttTransport

_log = logging.getLogger(__name__)

M_ARENA_MAX = -8
"""glibc, malloc.h."""


def run_agent(
    config: AgentConfig,
    host: Host,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    keepalive_s: int = KEEPALIVE_S,
) -> None:
    """Serve until the run is over (with `once`), SIGINT or SIGTERM; blocks.

    Args:
        config: Of the agent.
        host: The machine, or its emulation.
        loop_factory: Makes the event loop; its clock must be that of the host.
        keepalive_s: The broker misses a silent agent after 1.5 times this, on its own clock.

    Raises:
        AgentError: Bad configuration or data, or the agent was refused.
        EngineError: The training engine is not installed.
    """

    def transport(will: Will) -> Transport:
        # One id per name: after a power cut the broker replaces the dead session, and
        # its last will cannot come later and contradict the new one.
        client_id = f"fairbed-{config.tenant}-{config.name}"
        try:
            return MqttTransport(config.broker_url, client_id, will=will, keepalive_s=keepalive_s)
        except ValueError as exc:
            raise ConfigError(str(exc)) from exc

    _share_one_heap()
    agent = Agent(config, host, transport)
    anyio.run(_serve, agent, backend_options={"loop_factory": loop_factory})


def log_to_stderr(level: str) -> None:
    """One line per state change, on stderr."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(message)s",
        force=True,
    )


def _share_one_heap() -> None:
    """Have all threads allocate from one heap: pages freed by one serve the others (1 MB)."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_ARENA_MAX, 1)


async def _serve(agent: Agent) -> None:
    fault: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_stop_on_signal, group.cancel_scope, name="agent.signals")
        try:
            await agent.run()
        except (AgentError, EngineError) as exc:  # not wrapped into a group's error
            fault = exc
        group.cancel_scope.cancel()
    if fault is not None:
        raise fault


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for received in signals:
            _log.info("%s: leaving", received.name)
            scope.cancel()
            return
