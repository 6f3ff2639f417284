"""How a device becomes a member of a coordinator's fleet: hello, welcome, preparation.

What a welcome asks for: pull what is missing, try it, measure the link.
"""

import logging
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from fairbed.device_agent.errors import NotPrepared, one_line
from fairbed.device_agent.examples import BlobCache, CachedShard, ExampleSource, OwnData
from fairbed.device_agent.link_probe import LinkProber
from fairbed.device_agent.notify import Notify
from fairbed.device_agent.round import RoundContext
from fairbed.device_agent.state.lifecycle import TRANSITIONS, Event, Phase
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import Hello, Manifest, Welcome

_log = logging.getLogger(__name__)

ATTEMPTS = 2
"""A blob whose hash is wrong is pulled once more before giving up."""


class Preparation:
    """Prepares the worker for what a coordinator wants."""

    def __init__(
        self, kit: RoundContext, cache: BlobCache, prober: LinkProber, own_data: Path | None
    ) -> None:
        self._kit = kit
        self._cache = cache
        self._prober = prober
        self._own_data = own_data
        self._prepared_for: tuple[Manifest, Manifest | None] | None = None

    def is_done(self, welcome: Welcome) -> bool:
        """Tell whether the device is prepared for exactly this."""
        return self._kit.worker.is_prepared and self._prepared_for == _wish(welcome)

    async def prepare(self, welcome: Welcome) -> None:
        """Get ready; cheap if task and shard are in the cache.

        Raises:
            NotPrepared: Task or data cannot be had or do not work.
        """
        self._prepared_for = None
        with anyio.move_on_after(self._kit.timeouts.prepare_s) as scope:
            await self._prepare(welcome)
        if scope.cancelled_caught:
            raise NotPrepared(f"not ready within {self._kit.timeouts.prepare_s:g} s")
        self._prepared_for = _wish(welcome)

    async def _prepare(self, welcome: Welcome) -> None:
        await self._ensure(welcome.task, "task")
        examples: ExampleSource
        if self._own_data is not None:
            examples = OwnData(self._own_data)
        elif welcome.shard is not None:
            await self._ensure(welcome.shard, "shard")
            examples = CachedShard(self._cache, welcome.shard)
        else:
            raise NotPrepared("data: the coordinator has none for us; start with --data FILE.npz")
        await self._kit.worker.prepare(welcome.task, examples)
        await self._prober.measure()

    async def _ensure(self, manifest: Manifest, kind: str) -> None:
        """Have a blob in the cache."""
        if manifest.kind != kind:
            raise NotPrepared(f"{kind}: the manifest must be of a {kind}, got {manifest.kind}")
        if await anyio.to_thread.run_sync(self._cache.get, manifest) is not None:
            return
        for attempt in range(ATTEMPTS):
            try:
                await self._pull(manifest)
                return
            except (DecodeError, OSError, MemoryError) as exc:
                _log.warning("%s: %s: %s", self._kit.name, kind, one_line(exc))
                if attempt + 1 == ATTEMPTS:
                    raise NotPrepared(f"{kind}: {one_line(exc)}") from exc

    async def _pull(self, manifest: Manifest) -> None:
        pull = await self._kit.pulls.fetch(manifest)

        def keep() -> None:
            pull.download.verify()
            self._cache.put(manifest, pull.download.data)

        await anyio.to_thread.run_sync(keep)


def _wish(welcome: Welcome) -> tuple[Manifest, Manifest | None]:
    return welcome.task, welcome.shard


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
        kit: RoundContext,
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
        self._bell = Notify()
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
