"""One agent as a process: link to the broker, signals, exit.

The console script runs it with the real host, the testbed with an emulated one.
"""

import asyncio
import hashlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import anyio

from fairbed.device_agent.agent import Agent
from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.errors import AgentError, ConfigError, EngineError, Renamed
from fairbed.device_agent.host import Host
from fairbed.device_agent.log import RecentLog
from fairbed.device_agent.memory import share_one_heap
from fairbed.device_agent.renewal import Renewal
from fairbed.device_agent.systemd import notify_systemd
from fairbed.wire.transport.address import parse_url
from fairbed.wire.transport.base import KEEPALIVE_S, Transport, Will
from fairbed.wire.transport.client import MqttTransport

_log = logging.getLogger(__name__)

CLIENT_ID_DIGITS = 24
"""Hexadecimal digits of the hash in a client id: 96 bits."""


def run_agent(
    config: AgentConfig,
    host: Host,
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    keepalive_s: int = KEEPALIVE_S,
    config_path: Path | None = None,
) -> None:
    """Run an agent until SIGINT, SIGTERM or (with `once`) the end of the run; blocks.

    Args:
        config: Configuration of the agent.
        host: The machine, real or emulated.
        loop_factory: Returns the event loop; its clock must be that of the host.
        keepalive_s: The broker declares a silent agent lost after 1.5 times this, on the broker's
            clock.
        config_path: File of the configuration, which gets the new name if a lab renames the device.

    Raises:
        AgentError: Bad configuration or data, or the agent was refused.
        Renamed: A lab renamed the device; `config_path` has the new name.
        EngineError: The training engine is not installed.
    """
    share_one_heap()
    recent = RecentLog(config.name, config.send_log, host.clock.now)

    async def serve() -> None:
        renewal = Renewal(config, config_path)
        agent = Agent(
            config,
            host,
            lambda will: link(config, will, keepalive_s=keepalive_s, renewal=renewal),
            log=None if config.send_log == "off" else recent,
        )
        await _serve(agent, renewal)

    with recent.attached():
        anyio.run(serve, backend_options={"loop_factory": loop_factory})


def link(
    config: AgentConfig,
    will: Will,
    *,
    keepalive_s: int = KEEPALIVE_S,
    backoff: Callable[[int], float] | None = None,
    renewal: Renewal | None = None,
) -> Transport:
    """Return the link of an agent; unless it serves once, it waits while the broker refuses it.

    Raises:
        ConfigError: The URL is not a broker address, or its certificates cannot be read.
    """
    try:
        return MqttTransport(
            config.broker_url,
            client_id(config),
            will=will,
            keepalive_s=keepalive_s,
            backoff=backoff,
            waits_if_refused=not config.once,
            on_refused=None if renewal is None else renewal.on_refused,
        )
    except ValueError as exc:
        raise ConfigError(str(exc)) from exc


def client_id(config: AgentConfig) -> str:
    """Return the agent's client id, always the same for the same name, user and password.

    After a power failure the broker replaces the dead session, so that its last will cannot arrive
    later and contradict the new status. The hash keeps others from ending the session by
    connecting under the same id: they would need the password.

    Raises:
        ValueError: The URL is not a broker address.
    """
    address = parse_url(config.broker_url)
    login = f"{address.username or ''}\0{address.password or ''}"
    digest = hashlib.sha256(login.encode()).hexdigest()[:CLIENT_ID_DIGITS]
    return f"fairbed-{config.tenant}-{config.name}-{digest}"


async def _serve(agent: Agent, renewal: Renewal) -> None:
    fault: Exception | None = None

    async def stop_when_renamed() -> None:
        nonlocal fault
        await renewal.until_renamed()
        fault = Renamed("the lab renamed this device")
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(_stop_on_signal, group.cancel_scope, name="agent.signals")
        group.start_soon(notify_systemd, name="agent.systemd")
        group.start_soon(stop_when_renamed, name="agent.renamed")
        try:
            await agent.run()
        except (AgentError, EngineError) as exc:  # raised below, outside of an exception group
            fault = exc
        group.cancel_scope.cancel()
    if fault is not None:
        raise fault


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for received in signals:
            _log.info("%s: stopping", received.name)
            scope.cancel()
            return
