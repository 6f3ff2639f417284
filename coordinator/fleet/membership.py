"""Devices come, go and say how they are: the shell around the registry."""

import anyio
import anyio.to_thread
import msgspec

from fairbed.coordinator.fleet.codec_agreement import missing_codecs
from fairbed.coordinator.messaging.blobs import PrivateBlobs, SideTraffic
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.policy.config import ExchangeConfig
from fairbed.coordinator.ports import ShardSource
from fairbed.coordinator.state.registry import NEVER, Device, Registry, clamps
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import DeviceRow, TelemetryRow
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES, manifest_of
from fairbed.wire.messages import (
    Context,
    Hello,
    LinkProbe,
    LinkProbeReply,
    Manifest,
    Refuse,
    Status,
    Welcome,
)
from fairbed.wire.shard import encode_shard

MAX_DEVICES = 10_000
"""More hellos than this are refused: a run-away client must not grow the registry for ever."""

REJOIN_S = 10.0
"""After an outage the next round waits this long for the devices that were ready before it."""


class Fleet:
    """Welcomes devices, keeps the registry up to date, answers link probes."""

    def __init__(
        self,
        registry: Registry,
        post: Publisher,
        private: PrivateBlobs,
        shards: ShardSource,
        journal: EventLog,
        traffic: SideTraffic,
        *,
        task: Manifest,
        boot: int,
        exchange: ExchangeConfig,
        max_chunk_bytes: int,
    ) -> None:
        self.registry = registry
        self._post = post
        self._private = private
        self._shards = shards
        self._journal = journal
        self._traffic = traffic
        self._task = task
        self._boot = boot
        self._exchange = exchange
        self._max_chunk_bytes = max_chunk_bytes
        self._manifests: dict[str, Manifest] = {}
        self._clamped: set[tuple[str, str]] = set()
        """Device and number that it was told about: once a run is enough."""
        self._changed = anyio.Event()
        self._is_linked = anyio.Event()
        self._missing = 0
        self._rejoin_by = 0.0

    def on_link_down(self) -> None:
        """Nothing is current any more; no round begins until the fleet is back."""
        if self._is_linked.is_set():
            self._is_linked = anyio.Event()
            # An outage may come before everybody is back from the last one.
            self._missing = max(self._missing, self.registry.forget_contexts())

    def on_link_up(self) -> None:
        """The broker is back: the devices will say hello again."""
        self._is_linked.set()
        self._rejoin_by = self._journal.now() + REJOIN_S

    async def wait_settled(self) -> None:
        """Wait for the broker, and after an outage for those who were there before it."""
        while self._missing or not self._is_linked.is_set():
            await self._is_linked.wait()
            left = self._rejoin_by - self._journal.now()
            if left <= 0 or self.registry.present(self._journal.now()) >= self._missing:
                self._missing = 0
            else:
                await self.wait_change(left)

    async def wait_change(self, timeout_s: float) -> None:
        """Wait until a device became available or ceased to be, or for `timeout_s`."""
        changed = self._changed
        with anyio.move_on_after(timeout_s):
            await changed.wait()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def on_hello(self, name: str, hello: Hello) -> bool:
        """Welcome a device or refuse it; tell whether its process is another than before."""
        if name not in self.registry and len(self.registry) >= MAX_DEVICES:
            self._refuse(name, f"the run is full: {MAX_DEVICES} devices")
            return False
        if hello.n_k == 0:
            self._refuse(name, "its own data must hold at least 1 example, got 0")
            return False
        shard = None
        if hello.n_k is None:
            shard, n_k = await self._offer_shard(name)
            if shard is None:
                self._refuse(name, "no data left for this device; start it with --data FILE.npz")
                return False
        known = self.registry.get(name)
        is_new = known is None or known.boot != hello.boot
        was_known = known is not None and known.boot != NEVER
        device = self.registry.join(name, hello, self._journal.now())
        if shard is not None:
            device.n_registered = n_k
        if is_new:
            self._record(device, was_known)
        welcome = Welcome(
            boot=self._boot,
            task=self._task,
            shard=shard,
            max_chunk_bytes=self._max_chunk_bytes,
        )
        self._post.say(name, welcome)
        return is_new and was_known

    def on_context(self, name: str, context: Context) -> bool:
        """Take note of a context, and tell whether it is a joined device's newest.

        The shard's memory is freed once the device has it.
        """
        now = self._journal.now()
        known = self.registry.get(name)
        was_there = known is not None and (known.is_available(now), known.is_present(now))
        if not self.registry.update_context(name, context, now):
            return False
        device = self.registry[name]
        if (device.is_available(now), device.is_present(now)) != (was_there or (False, False)):
            self._change()
        for what, text in clamps(device).items():
            if (name, what) not in self._clamped:
                self._clamped.add((name, what))
                text = f"says {what} {text}"
                self._journal.event("clamped", text, level="warning", device=name)
        if context.is_ready:
            self._private.drop(name)
        self._journal.add(
            TelemetryRow(
                at_s=self._journal.at_s(now),
                device=name,
                phase=device.status(now),
                is_available=device.is_available(now),
                mu_cores=context.mu_cores,
                downlink_bps=context.downlink_bps,
                uplink_bps=context.uplink_bps,
                cpu_ratio=context.cpu_ratio,
                rss_bytes=context.rss_bytes,
                temperature_celsius=context.temperature_celsius,
                free_cores=context.free_cores,
                clock_ratio=context.clock_ratio,
                throttled=None if context.throttled is None else ",".join(context.throttled),
            )
        )
        return True

    def on_status(self, name: str, status: Status) -> None:
        """Take note of a farewell or a last will; `on` says nothing that a hello does not."""
        if status.state == "off" and self.registry.went_off(name, status.boot, self._journal.now()):
            self._journal.event("left", "the device went away", device=name)
            self._change()

    def on_probe(self, name: str, probe: LinkProbe) -> None:
        """Answer a link probe."""
        self._traffic.up_bytes += len(probe.payload)
        self._traffic.down_bytes += probe.reply_bytes
        reply = LinkProbeReply(seq=probe.seq, payload=bytes(probe.reply_bytes))
        self._post.say(name, reply, qos=0)

    async def _offer_shard(self, name: str) -> tuple[Manifest | None, int]:
        shard = await anyio.to_thread.run_sync(self._shards.shard, name)
        if shard is None:
            return None, 0
        data = await anyio.to_thread.run_sync(encode_shard, shard)
        manifest = self._manifests.get(name)
        if manifest is None:
            manifest = await anyio.to_thread.run_sync(
                manifest_of, data, "shard", min(DEFAULT_CHUNK_BYTES, self._max_chunk_bytes)
            )
            self._manifests[name] = manifest
        self._private.offer(name, manifest, data)
        return manifest, shard.n

    def _refuse(self, name: str, reason: str) -> None:
        self._journal.complaint("refused", reason, device=name)
        self._post.say(name, Refuse(reason=reason, is_final=True))

    def _record(self, device: Device, was_known: bool) -> None:
        capabilities = device.capabilities
        assert capabilities is not None
        if device.first_seen_s is None:
            device.first_seen_s = self._journal.at_s()
        self._journal.add(
            DeviceRow(
                name=device.name,
                row=device.row,
                first_seen_s=device.first_seen_s,
                n_k=device.n_registered,
                capabilities=msgspec.json.encode(capabilities).decode(),
                has_own_data=device.has_own_data,
            )
        )
        self._journal.event(
            "rejoined" if was_known else "joined",
            f"{capabilities.cores} cores, {capabilities.engine}, {device.n_registered} examples",
            device=device.name,
        )
        if self.registry.must_answer and not device.can_answer:
            self._journal.event(
                "skill",
                "cannot be asked for its loss, which the selection needs, so it is never "
                "selected; update its agent",
                level="warning",
                device=device.name,
            )
        missing = missing_codecs(self._exchange, capabilities)
        if missing:
            self._journal.event(
                "codec",
                f"knows no {' and no '.join(missing)}: is served float32; update its agent",
                level="warning",
                device=device.name,
            )
