"""How a device becomes a member of a coordinator's fleet: hello, welcome, preparation."""

import logging
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from device_agent.bell import Bell
from device_agent.errors import NotPrepared
from device_agent.lifecycle import TRANSITIONS, Event, Phase
from device_agent.preparation import Preparation
from device_agent.round import Kit
from wire.messages import Hello, Welcome

_log = logging.getLogger(__name__)


class Joining:
    """Says hello until it is welcome, then prepares what the welcome asks for.

    Args:
        kit: The agent's means.
        group: Runs the preparation.
        preparation: What has to be done.
        hello: What the device says of itself.
        phase: The agent's phase now.
        step: Tells the agent what happened.
        on_end: Called when a preparation has ended, well or not.
    """

    def __init__(
        self,
        kit: Kit,
        group: TaskGroup,
        preparation: Preparation,
        hello: Hello,
        phase: Callable[[], Phase],
        step: Callable[[Event], None],
        on_end: Callable[[], None],
    ) -> None:
        self._kit = kit
        self._group = group
        self._preparation = preparation
        self._hello = hello
        self._phase = phase
        self._step = step
        self._on_end = on_end
        self._bell = Bell()
        self._hello_at = 0.0
        self._under_way: tuple[Welcome, anyio.CancelScope] | None = None

    async def greet(self) -> None:
        """Say hello, for ever, while nobody has welcomed us."""
        clock = self._kit.clock
        while True:
            left_s = self._hello_at - clock.now()
            if self._phase() is not Phase.JOINING:
                await self._bell.wait()
            elif left_s > 0.0:
                await self._bell.wait(left_s)
            else:
                self._hello_at = clock.now() + self._kit.timeouts.hello_s
                await self._kit.post.tell(self._hello)

    def greet_now(self) -> None:
        """There is somebody to greet."""
        self._greet_in(0.0)

    def greet_later(self) -> None:
        """We were refused, or cannot do what is asked: do not insist."""
        self._greet_in(self._kit.timeouts.refused_s)

    def repeat_hello(self) -> None:
        """Greet in the middle of work: one of us had lost its link."""
        self._kit.post.say(self._hello)

    def on_welcome(self, welcome: Welcome) -> None:
        """Prepare, unless that is done or under way; a device at work goes on working."""
        phase, is_done = self._phase(), self._preparation.is_done(welcome)
        if phase.is_working or Event.WELCOMED not in TRANSITIONS[phase]:
            return
        if phase is Phase.IDLE and is_done:
            return
        if self._under_way is not None and self._under_way[0] == welcome:
            return
        self.stop()
        self._step(Event.WELCOMED)
        if is_done:
            self._step(Event.PREPARED)
            return
        scope = anyio.CancelScope()
        self._under_way = (welcome, scope)
        self._group.start_soon(
            self._prepare, welcome, scope, name=f"agent[{self._kit.name}].prepare"
        )

    def stop(self) -> None:
        """Drop the preparation under way: another coordinator is on."""
        if self._under_way is not None:
            self._under_way[1].cancel()
            self._under_way = None

    async def _prepare(self, welcome: Welcome, scope: anyio.CancelScope) -> None:
        event = Event.UNPREPARED
        with scope:
            try:
                await self._preparation.prepare(welcome)
                event = Event.PREPARED
            except NotPrepared as exc:
                _log.warning("%s: cannot train: %s", self._kit.name, exc)
        if self._under_way != (welcome, scope):
            return
        self._under_way = None
        self.greet_later()
        self._step(event)
        self._on_end()

    def _greet_in(self, delay_s: float) -> None:
        self._hello_at = self._kit.clock.now() + delay_s
        self._bell.ring()
