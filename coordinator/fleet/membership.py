"""Membership of the fleet: hellos, contexts, goodbyes and link probes, around the registry."""

import time
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread
import msgspec

from fairbed.coordinator.fleet.codec_agreement import missing_codecs
from fairbed.coordinator.fleet.plausibility import fault_in_hello
from fairbed.coordinator.messaging.blobs import PrivateBlobs, SideTraffic
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.messaging.signatures import FleetSignatures
from fairbed.coordinator.policy.config import ExchangeConfig, LimitsConfig
from fairbed.coordinator.ports import EarlierNames, Places, ShardSource, no_earlier_names
from fairbed.coordinator.state.rate_limit import RateLimit
from fairbed.coordinator.state.registry import (
    NEVER,
    Device,
    Registry,
    bounded_n_k,
    clamped_values,
)
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import DeviceRow, TelemetryRow
from fairbed.wire.chunks import DEFAULT_CHUNK_BYTES, manifest_of
from fairbed.wire.messages import (
    BaseArrived,
    Capabilities,
    Context,
    DataScale,
    HeldOut,
    Hello,
    LinkProbe,
    LinkProbeReply,
    Manifest,
    Refuse,
    Signed,
    Status,
    Trouble,
    Welcome,
)
from fairbed.wire.plugins import is_path
from fairbed.wire.shard import encode_shard

MAX_DEVICES = 10_000
"""Largest fleet; the limit keeps a faulty client from growing the registry without bound."""

NEWCOMERS = 20.0, 500
"""Devices of unknown names that are admitted per second, and at once; the others are admitted when
they send hello again, 2 s later. At a broker with one login for all, a hostile client could invent
names by the thousand. Devices that the experiment names are admitted at any time."""

CLOCK_OFF_S = 60.0
"""Difference of two clocks from which a person should know: NTP keeps it below a second, and a
hello may be seconds old."""

REJOIN_S = 10.0
"""Longest wait of the next round for devices that were ready before an outage."""


class Fleet:
    """Admits devices, updates the registry, and answers link probes."""

    def __init__(
        self,
        registry: Registry,
        publisher: Publisher,
        private: PrivateBlobs,
        shards: ShardSource | None,
        event_log: EventLog,
        *,
        welcome: Welcome,
        side_traffic: SideTraffic,
        exchange: ExchangeConfig,
        held_out: HeldOut | None = None,
        limits: LimitsConfig | None = None,
        signatures: FleetSignatures | None = None,
        wants_scale: bool = False,
        earlier_names: EarlierNames = no_earlier_names,
        places: Places | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._earlier_names = earlier_names
        self._renamed: dict[str, str] = {}
        """Former name of each device that has another name from the next round on."""
        self._wall = wall
        self.registry = registry
        self._publisher = publisher
        self._private = private
        self._shards, self._places = shards, places
        self._event_log = event_log
        self._welcome = welcome
        self._side_traffic = side_traffic
        self._exchange = exchange
        self._held_out = held_out
        self._limits = limits or LimitsConfig()
        self._signatures = signatures or FleetSignatures()
        self._wants_scale = wants_scale
        self._newcomers = RateLimit(*NEWCOMERS)
        self._manifests: dict[str, Manifest] = {}
        self._clamped: set[tuple[str, str]] = set()
        """Device and name of each clamped value that has an event already: one event per run."""
        self._recorded_n_k: dict[str, int] = {}
        """Training examples of each device, in its row of the store."""
        self._changed = anyio.Event()
        self._is_linked = anyio.Event()
        self._missing = 0
        """Number of devices that were ready before the last outage; the next round waits for it."""
        self._rejoin_by = 0.0

    def on_link_down(self) -> None:
        """The link is down: expire all contexts; no round begins until the fleet has rejoined."""
        if self._is_linked.is_set():
            self._is_linked = anyio.Event()
            # The next outage may begin before all devices are back from the last one.
            self._missing = max(self._missing, self.registry.expire_contexts())

    def on_link_up(self) -> None:
        """The link is up: the devices will send a hello again."""
        self._is_linked.set()
        self._rejoin_by = self._event_log.now() + REJOIN_S

    async def wait_settled(self) -> None:
        """Wait for the link, and after an outage for as many devices as were ready before."""
        while self._missing or not self._is_linked.is_set():
            await self._is_linked.wait()
            left = self._rejoin_by - self._event_log.now()
            if left <= 0 or self.registry.present(self._event_log.now()) >= self._missing:
                self._missing = 0
            else:
                await self.wait_change(left)

    async def wait_change(self, timeout_s: float) -> None:
        """Wait until the availability of a device changes, or for `timeout_s`."""
        changed = self._changed
        with anyio.move_on_after(timeout_s):
            await changed.wait()

    async def on_hello(self, name: str, hello: Hello, signed: Signed | None = None) -> bool:
        """Admit a device or refuse it; return whether its agent was restarted.

        Args:
            name: Of the device.
            hello: Its request.
            signed: The message in which it came; None if it is not signed.
        """
        if name not in self.registry and len(self.registry) >= MAX_DEVICES:
            self._refuse(name, f"the run is full: {MAX_DEVICES} devices")
            return False
        if name not in self.registry and await self._is_renamed(name):
            return False  # it repeats its hello; a round that is open has its former name
        if name not in self.registry and not self._newcomers.take("", self._event_log.now()):
            text = f"more than {NEWCOMERS[0]:g} new devices a second send hello; the others wait"
            self._event_log.warn("flood", text)
            return False
        if problem := await self._signatures.begin(name, hello, signed):
            self._refuse(name, problem, is_plain=True)
            return False
        if hello.n_k == 0:
            reason = "its own data must hold at least 1 example, got 0"
            self._refuse(name, reason, is_final=True)
            return False
        if fault := fault_in_hello(hello, self._limits):
            self._refuse(name, fault)
            return False
        shard = number = None
        if self._places is not None:
            number = await anyio.to_thread.run_sync(self._places.number, name)
        if hello.n_k is None and self._shards is not None:
            shard, n_k, positions = await self._offer_shard(self._shards, name)
            if shard is None:
                self._refuse(name, "no data left for this device; start it with --data FILE.npz")
                return False
        if hello.n_k is None and self._shards is None and number is None:
            self._refuse(name, "all devices of this run have joined, and it has no number left")
            return False
        known = self.registry.get(name)
        is_new = known is None or known.boot != hello.boot
        was_known = known is not None and known.boot != NEVER
        device = self.registry.join(name, hello, self._event_log.now())
        self._check_clock(device, hello)
        if shard is not None:
            device.n_registered, device.positions_registered = n_k, positions
        if is_new:
            self._record(device, was_known)
        if problem := self._training_problem(device):
            if is_new:
                self._event_log.report("skill", problem, level="warning", device=name)
            device.trouble = Trouble(boot=hello.boot, kind="not prepared", reason=problem)
            device.trouble_at = self._event_log.now()
            self._private.drop(name)
            self._publisher.publish(name, Refuse(reason=problem))
            return is_new and was_known
        held_out = self._held_out if device.has_own_data and device.can_test else None
        welcome = msgspec.structs.replace(
            self._welcome,
            shard=shard,
            held_out=held_out,
            wants_log=device.can_send_log,
            wants_scale=self._wants_scale and device.can_send_scale,
            number=number,
            count=None if number is None or self._places is None else self._places.count,
        )
        self._publisher.publish(name, welcome)
        return is_new and was_known

    def on_context(self, name: str, context: Context) -> bool:
        """Record a context; return whether it is the newest of a device that has joined.

        The memory of its shard is freed once the device is ready.
        """
        now = self._event_log.now()
        known = self.registry.get(name)
        before = known is not None and (known.is_available(now), known.is_present(now))
        if not self.registry.update_context(name, context, now):
            return False
        device = self.registry[name]
        if (device.is_available(now), device.is_present(now)) != (before or (False, False)):
            self.notify()
        for quantity, text in clamped_values(device).items():
            if (name, quantity) not in self._clamped:
                self._clamped.add((name, quantity))
                text = f"reports {quantity} {text}"
                self._event_log.event("clamped", text, level="warning", device=name)
        if context.is_ready:
            self._private.drop(name)
            if bounded_n_k(device) != self._recorded_n_k.get(name):
                self._record_n_k(device)
        self._event_log.add(
            TelemetryRow(
                at_s=self._event_log.at_s(now),
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

    def on_scale(self, name: str, message: DataScale) -> None:
        """Record the scale of a device's own data; of a device that was not asked it is ignored."""
        device = self.registry.get(name)
        if device is not None and device.boot == message.boot and device.can_send_scale:
            device.scale = message.scale if self._wants_scale else None

    def on_base(self, name: str, message: BaseArrived) -> None:
        """Record that the frozen part of the model is on a device, and how long it downloaded it.

        A report of another size, or of an earlier process of the device, is ignored.
        """
        device, base = self.registry.get(name), self._welcome.base
        if device is None or base is None or device.boot != message.boot:
            return
        if message.size_bytes != base.size_bytes:
            return
        device.base_bytes = message.size_bytes
        if message.download_s is not None:
            device.base_s = message.download_s
        self._record_n_k(device)
        took = "" if device.base_s is None else f", downloaded in {device.base_s:.1f} s"
        text = f"the frozen part of the model is on the device: {base.size_bytes:,} bytes{took}"
        self._event_log.event("base", text, device=name)

    async def _is_renamed(self, name: str) -> bool:
        """Note the former name of a device that the lab renamed; return whether it had one here."""
        earlier = await anyio.to_thread.run_sync(self._earlier_names, name)
        old = next((one for one in earlier if one in self.registry), None)
        if old is not None and name not in self.registry:
            self._renamed[name] = old
            self.notify()
        return old is not None

    def apply_renames(self) -> None:
        """Rename devices that the lab renamed; between two rounds, when no exchange is open."""
        for new, old in self._renamed.items():
            if old not in self.registry or new in self.registry:
                continue
            self.registry.rename(old, new)
            self._event_log.store.rename_device(old, new)
            text = f"was {old}; it keeps its row, its data and its queue"
            self._event_log.event("renamed", text, device=new)
        self._renamed.clear()

    def _check_clock(self, device: Device, hello: Hello) -> None:
        """Note a wall clock that differs from that of this machine, or that it does not any more.

        A wrong clock delays no exchange, but its certificate, login and hours do not hold.
        """
        if hello.clock_s is None:
            return
        off_s = hello.clock_s - self._wall()
        if abs(off_s) > CLOCK_OFF_S:
            reason = "set the clock of the device: sudo timedatectl set-ntp true"
            trouble = Trouble(boot=hello.boot, kind="clock off", reason=reason, off_s=off_s)
            self.on_trouble(device.name, trouble)
        elif device.trouble is not None and device.trouble.off_s is not None:
            device.trouble = None

    def on_trouble(self, name: str, trouble: Trouble) -> None:
        """Record why a device cannot join or prepare, and report it if it is new."""
        device = self.registry.get(name)
        if device is None or device.boot != trouble.boot:
            return
        before = device.trouble
        is_new = before is None or (before.kind, before.reason) != (trouble.kind, trouble.reason)
        device.trouble = trouble
        if is_new:
            device.trouble_at = self._event_log.now()
            is_short = trouble.text.endswith(trouble.reason)
            text = trouble.text if is_short else f"{trouble.text}; {trouble.reason}"
            self._event_log.report("trouble", text, level="warning", device=name)

    def on_status(self, name: str, status: Status) -> None:
        """Record a goodbye or a last will; `on` adds nothing to a hello."""
        if status.state == "off" and self.registry.mark_off(
            name, status.boot, self._event_log.now()
        ):
            self._event_log.report("left", "the device disconnected", device=name)
            self.notify()

    def drop(self, name: str, reason: str) -> None:
        """Record that the broker refuses a device, so that it is not available.

        Its last will may have arrived before; the event has the reason nevertheless.
        """
        device = self.registry.get(name)
        if device is None:
            return
        text = f"{reason}; it leaves the fleet of this run, and its queue is frozen"
        self._event_log.event("revoked", text, level="warning", device=name)
        device.is_refused, device.trouble = True, None
        self.registry.mark_off(name, device.boot, self._event_log.now())
        self.notify()  # also of a device that is only awaited: a wait may count it

    def on_probe(self, name: str, probe: LinkProbe) -> None:
        """Answer a link probe."""
        self._side_traffic.up_bytes += len(probe.payload)
        self._side_traffic.down_bytes += probe.reply_bytes
        reply = LinkProbeReply(seq=probe.seq, payload=bytes(probe.reply_bytes))
        self._publisher.publish(name, reply, qos=0)

    def notify(self) -> None:
        """Let waits look again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _offer_shard(
        self, shards: ShardSource, name: str
    ) -> tuple[Manifest | None, int, int]:
        """Return the shard of a device, its examples, and their positions with a target."""
        shard = await anyio.to_thread.run_sync(shards.shard, name)
        if shard is None:
            return None, 0, 0
        data = await anyio.to_thread.run_sync(encode_shard, shard)
        manifest = self._manifests.get(name)
        if manifest is None:
            manifest = await anyio.to_thread.run_sync(
                manifest_of, data, "shard", min(DEFAULT_CHUNK_BYTES, self._welcome.max_chunk_bytes)
            )
            self._manifests[name] = manifest
        self._private.offer(name, manifest, data)
        positions = await anyio.to_thread.run_sync(shard.count_positions)
        return manifest, shard.n, positions

    def _refuse(
        self, name: str, reason: str, *, is_final: bool = False, is_plain: bool = False
    ) -> None:
        """Refuse a device for this run, or for every run (`is_final`); `is_plain`: unsigned."""
        self._event_log.warn("refused", reason, device=name)
        refuse = Refuse(reason=reason, is_final=is_final)
        self._publisher.publish(name, refuse, is_plain=is_plain)

    def _record_n_k(self, device: Device) -> None:
        """Write the row of a device; its own data are fewer once it has held out test examples."""
        if device.first_seen_s is None:
            device.first_seen_s = self._event_log.at_s()
        n_k = self._recorded_n_k[device.name] = bounded_n_k(device)
        self._event_log.add(
            DeviceRow(
                name=device.name,
                row=device.row,
                first_seen_s=device.first_seen_s,
                n_k=n_k,
                capabilities=msgspec.json.encode(device.capabilities).decode(),
                has_own_data=device.has_own_data,
                kind="emulated" if device.name in self.registry.emulated else "physical",
                base_bytes=device.base_bytes,
                base_s=device.base_s,
            )
        )

    def _training_problem(self, device: Device) -> str:
        """Return why a device cannot train the model, and what to do; empty if it can."""
        engine, module = self.registry.engine, self.registry.module
        known = device.capabilities
        if self._welcome.base is not None and known is not None and "base" not in known.skills:
            return (
                "its agent knows no model with a frozen part (model.trainable, model.lora); update "
                "fairbed on the device"
            )
        if device.runs_model(engine, module):
            return self.registry.memory_problem(device)
        assert device.capabilities is not None
        if engine == "client":
            return (
                f"its owner does not allow the client {module} of this run; start its agent with "
                f"--allow-client {module}=FOLDER, where FOLDER has the same code"
            )
        if engine not in device.capabilities.engines:
            return (
                f"its agent has no {engine}, which the model of this run needs; install it on the "
                "device"
            )
        lacking = [x for x in module.split() if x not in device.capabilities.models]
        return (
            f"its owner does not allow the module {' and '.join(lacking)} of this model; start its "
            f"agent with {' '.join(f'--allow-models {x}' for x in lacking)}"
        )

    def _own_part(self, device: Device) -> int | None:
        """Return the part of a mini-batch that follows from a device's memory; else None."""
        fitting, known = self.registry.fitting, device.capabilities
        if fitting is None or known is None or not fitting.chooses:
            return None
        return fitting.micro_batch(known.memory_bytes, device.n_registered)

    def _record(self, device: Device, was_known: bool) -> None:
        capabilities = device.capabilities
        assert capabilities is not None
        self._record_n_k(device)
        self._event_log.report(
            "rejoined" if was_known else "joined",
            f"{capabilities.cores} cores, {capabilities.engine}, {device.n_registered} examples",
            device=device.name,
        )
        if self.registry.needs_losses and not device.can_report_loss:
            self._event_log.report(
                "skill",
                "its agent cannot report a loss, which the selection needs, so it is never "
                "selected; update its agent",
                level="warning",
                device=device.name,
            )
        if size := self._own_part(device):
            self._event_log.report(
                "memory",
                f"its memory holds {size} examples of a mini-batch at once, so it computes parts "
                "of that size",
                device=device.name,
            )
        rule = self.registry.local_rule
        if not device.has_rule(rule):
            self._event_log.report(
                "skill",
                f"its agent has no local rule {rule}, which the run needs, so it is never "
                f"selected; {_remedy(rule)}",
                level="warning",
                device=device.name,
            )
        if lacking := self.registry.lacking_skills(device):
            self._event_log.report(
                "skill",
                f"its agent does not know {' and '.join(lacking)} of [training], which the run "
                f"uses, so it is never selected; {_skill_remedy(lacking)}",
                level="warning",
                device=device.name,
            )
        if not device.accepts_noise(self.registry.noise_multiplier):
            self._event_log.report(
                "skill",
                f"{_noise_problem(capabilities, self.registry.noise_multiplier)}, so it is never "
                "selected",
                level="warning",
                device=device.name,
            )
        if self.registry.personalises and not device.can_personalise:
            self._event_log.report(
                "skill",
                "its agent cannot train a personal model, so it trains the global one alone; "
                "update its agent",
                level="warning",
                device=device.name,
            )
        if self._held_out is not None and device.holds_tests and not device.can_test:
            self._event_log.report(
                "skill",
                "its agent cannot test the model on its own data, so it has no accuracy; update "
                "its agent"
                if not capabilities.min_noise_multiplier
                else "its owner demands noise, which a test has not, so it has no accuracy",
                level="warning",
                device=device.name,
            )
        missing = missing_codecs(self._exchange, capabilities)
        if missing:
            self._event_log.report(
                "codec",
                f"its agent has no codec {', '.join(missing)}: it gets float32; update its agent",
                level="warning",
                device=device.name,
            )


def _remedy(rule: str) -> str:
    """Return what makes a local rule known to an agent."""
    if is_path(rule):
        return f"start its agent with --local-training {rule}"
    return "install it on the device, or update its agent"


def _skill_remedy(lacking: Sequence[str]) -> str:
    """Return what makes skills known to an agent, or a function allowed."""
    own = next((one for one in lacking if is_path(one)), None)
    return "update its agent" if own is None else _remedy(own)


def _noise_problem(capabilities: Capabilities, noise_multiplier: float | None) -> str:
    """Return why a device does not train with the noise of a run."""
    if noise_multiplier is not None and "privacy" not in capabilities.skills:
        return "its agent cannot add noise, which [privacy] needs (update its agent)"
    got = "no noise" if noise_multiplier is None else f"{noise_multiplier:g}"
    return (
        f"its owner wants a privacy.noise_multiplier of at least "
        f"{capabilities.min_noise_multiplier:g}, got {got}"
    )
