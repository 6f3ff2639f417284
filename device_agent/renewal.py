"""Asks the lab why its broker refuses this agent, and acts on the reply.

Renamed: the configuration gets the new name, and the agent starts again. Revoked or expired: the
log has the reason, and the agent tries rarely, for as long as it runs: it may be enrolled again.
"""

import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from fairbed.device_agent.config import AgentConfig
from fairbed.device_agent.errors import AgentError
from fairbed.wire.enrolment import RenewReply
from fairbed.wire.errors import Refused
from fairbed.wire.messages import PROTOCOL_VERSION

if TYPE_CHECKING:
    from fairbed.device_agent.enrolment import Enrolled

_log = logging.getLogger(__name__)

ENDED_WAIT_S = 900.0
"""Longest wait between two attempts with an identity that was revoked or has expired."""


class Renewal:
    """Handles refusals by the broker of a lab.

    Args:
        config: Configuration of the agent.
        path: Its file; None if flags give name or address, which a rename cannot change.
        ask: Returns the standing of an identity; None asks the lab.
    """

    def __init__(
        self,
        config: AgentConfig,
        path: Path | None,
        ask: "Callable[[Enrolled], RenewReply] | None" = None,
    ) -> None:
        self._config, self._path, self._ask = config, path, ask
        self._last_line = ""
        self._random = random.Random()
        self._renamed = anyio.Event()

    async def until_renamed(self) -> None:
        """Wait until the lab has renamed this device."""
        await self._renamed.wait()

    async def on_refused(self, refusal: Refused) -> float:
        """Ask the lab after a refusal; return the least wait until the next attempt, seconds."""
        try:
            reply = await anyio.to_thread.run_sync(self._standing)
            if reply is None:
                return 0.0
            return self._act(reply)
        except AgentError as exc:
            self._log_once(f"the lab was asked why: {exc}")
            return 0.0

    def _standing(self) -> RenewReply | None:
        # Only after a refusal: http.client and what it imports take 4 MiB.
        from fairbed.device_agent.enrolment import ask_standing, enrolled

        identity = enrolled(self._config)
        return None if identity is None else (self._ask or ask_standing)(identity)

    def _act(self, reply: RenewReply) -> float:
        from fairbed.device_agent.enrolment import rename, utc_day

        name, again = self._config.name, f"enrol it again: fairbed enroll {reply.name}"
        if reply.protocol != PROTOCOL_VERSION:
            self._log_once(
                f"the lab has Fairbed {reply.version} with protocol {reply.protocol}, this agent "
                f"has protocol {PROTOCOL_VERSION}; install the lab's version: run the line of "
                "fairbed enroll on this device"
            )
        if reply.standing in ("revoked", "expired"):
            since = "" if reply.since_s is None else f" on {utc_day(reply.since_s)}"
            state = "was revoked" if reply.standing == "revoked" else "expired"
            self._log_once(f"its identity {state}{since}; {again}")
            return ENDED_WAIT_S * (0.5 + 0.5 * self._random.random())
        if reply.standing == "renamed" and reply.name != name:
            if self._path is None:
                self._log_once(f"the lab renamed it to {reply.name}; start it with that name")
                return 0.0
            rename(self._path, self._config, reply.name)
            _log.warning("%s: the lab renamed this device to %s", name, reply.name)
            self._renamed.set()
        return 0.0

    def _log_once(self, line: str) -> None:
        if line != self._last_line:
            _log.warning("%s: %s", self._config.name, line)
        self._last_line = line
