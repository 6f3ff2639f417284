"""What a welcome asks for: pull what is missing, try it, measure the link."""

import logging
from pathlib import Path

import anyio
import anyio.to_thread

from device_agent.cache import BlobCache
from device_agent.errors import NotPrepared, one_line
from device_agent.examples import CachedShard, ExampleSource, OwnData
from device_agent.probe import Prober
from device_agent.round import Kit
from wire.errors import DecodeError
from wire.messages import Manifest, Welcome

_log = logging.getLogger(__name__)

ATTEMPTS = 2
"""A blob whose hash is wrong is pulled once more before giving up."""


class Preparation:
    """Prepares the worker for what a coordinator wants."""

    def __init__(self, kit: Kit, cache: BlobCache, prober: Prober, own_data: Path | None) -> None:
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
