"""Executes rounds: passes events of the network to the round's table and executes its actions.

`RoundExecutor` holds the open table (`state.round.Round`). It reports each message of a device to
the table as an event, and executes the actions that follow: grants, checks, verdicts. `Echo` and
`HostContention` measure; `ExchangeVerdicts` notifies devices of the end of an exchange.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import anyio
from anyio.abc import TaskGroup

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import update_codec
from fairbed.coordinator.fleet.plausibility import fault_in_report
from fairbed.coordinator.fleet.uploads import OTHER_MODEL, CompletedUpload, Uploads, fault_in_offer
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.ports import HostMonitor
from fairbed.coordinator.rounds.merging import RoundMerge
from fairbed.coordinator.state.exchange import Contention, Exchange, ExchangeState, upload_window
from fairbed.coordinator.state.round import (
    Abandon,
    AcceptUpdate,
    Action,
    Arrived,
    BrokeProtocol,
    Checked,
    DeviceFailed,
    DeviceLost,
    Event,
    Excluded,
    GrantUpload,
    MarkLate,
    Offered,
    Round,
    Tick,
    VerifyUpdate,
)
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.schema import fault_in_measured
from fairbed.coordinator.store.tables import Source
from fairbed.wire.codec import Buffer
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import (
    DEVICE_PHASES,
    Cancel,
    EvaluateReply,
    Failed,
    Grant,
    Offer,
    PersonalScore,
    Ping,
    Pong,
    Train,
    UploadAck,
    UploadDone,
    UploadResult,
)

RESEND_S = 2.0
"""A device that is still idle this long after a request has not received the request."""


class Echo:
    """Measures the round trip of a control message to a device, once per exchange."""

    def __init__(self, publisher: Publisher, now: Callable[[], float]) -> None:
        self._publisher = publisher
        self._now = now
        self._open: dict[str, tuple[int, float, Exchange]] = {}
        """Number, instant and exchange of the last ping to each device."""
        self._count = 0

    def ping(self, device: str, exchange: Exchange) -> None:
        """Send a ping; it replaces an earlier one without a pong."""
        self._count += 1
        self._open[device] = (self._count, self._now(), exchange)
        self._publisher.publish(device, Ping(seq=self._count), qos=0)

    def on_pong(self, device: str, pong: Pong) -> None:
        """Write the round-trip time into the exchange."""
        ping = self._open.get(device)
        if ping is not None and pong.seq == ping[0]:
            _, sent, exchange = self._open.pop(device)
            exchange.signal_s = self._now() - sent


LagAt: TypeAlias = Callable[[Sequence[float]], float]
"""Returns the sum of the event loop's lags at some instants, seconds."""


class HostContention:
    """Charges waits of the busy host to the phases of an exchange in which they matter.

    The path counts while bytes of the device are on it, the device until its offer, and the lag of
    the event loop when it handles a message of the exchange.

    Args:
        monitor: Measures the host; None where no device is emulated.
        lag_s: Returns the lag of the event loop when it handled messages.
    """

    def __init__(self, monitor: HostMonitor | None, lag_s: LagAt) -> None:
        self._monitor = monitor
        self._lag_s = lag_s
        self._at_dispatch: dict[str, float] = {}
        """How long each device had waited at its dispatch, seconds."""
        self._counted: dict[str, Mapping[str, float]] = {}
        """What was counted of each device at its dispatch, by column of the exchange."""

    def begin(self, device: str) -> None:
        """Read the waits of a device at its dispatch."""
        self._at_dispatch.pop(device, None)
        waited_s = None if self._monitor is None else self._monitor.waited_s(device)
        if waited_s is not None:
            self._at_dispatch[device] = waited_s
        if self._monitor is not None:
            self._counted[device] = self._monitor.counted(device)

    def retain(self, devices: Collection[str]) -> None:
        """Drop the readings of all other devices."""
        self._at_dispatch = {k: waits for k, waits in self._at_dispatch.items() if k in devices}
        self._counted = {k: counted for k, counted in self._counted.items() if k in devices}

    def on_offer(self, exchange: Exchange, at: float) -> None:
        """Charge the phases until the offer, or until an exchange without one is abandoned."""
        exchange.lag_s = self._lag_s([exchange.dispatched, at])
        before = self._at_dispatch.pop(exchange.device, None)
        after = None if self._monitor is None else self._monitor.waited_s(exchange.device)
        if self._monitor is None or before is None or after is None:
            return
        downloaded, offer = at, exchange.offer
        if offer is not None:  # by clocks of one machine: only an emulated device is measured
            later = (phase for phase in DEVICE_PHASES if phase != "download")
            downloaded -= sum(getattr(offer.phases, f"{phase}_s") for phase in later)
        spans = [(exchange.dispatched, downloaded)]
        exchange.contention = Contention(
            download_s=self._monitor.path_delay_s(exchange.device, spans),
            compute_s=max(0.0, after - before),
            network_s=self._monitor.network_delay_s(exchange.device, spans),
        )

    def on_end(self, exchange: Exchange, at: float) -> None:
        """Charge the upload that ended with its last chunk, or was abandoned."""
        before = self._counted.pop(exchange.device, None)
        if self._monitor is not None and before:
            for name, count in self._monitor.counted(exchange.device).items():
                if name in before and count >= before[name]:
                    exchange.measured[name] = count - before[name]
        if exchange.offered is None:
            self.on_offer(exchange, at)
            return
        offered, granted, signal_s = exchange.offered, exchange.granted, exchange.signal_s or 0.0
        spans = [(offered - signal_s, offered)]
        if granted is not None:
            spans.append((granted, at))
            exchange.lag_s = self._lag_s([exchange.dispatched, offered, granted, at])
        found = exchange.contention
        if self._monitor is not None and found is not None:
            exchange.contention = replace(
                found,
                upload_s=self._monitor.path_delay_s(exchange.device, spans),
                network_s=found.network_s + self._monitor.network_delay_s(exchange.device, spans),
            )


class ExchangeVerdicts:
    """Notifies devices how their exchanges ended, and keeps the last verdict of each device."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._verdicts: dict[str, UploadResult | Cancel] = {}

    def send(self, exchange: Exchange) -> None:
        """Notify a device how its exchange ended."""
        state, offer, reason = exchange.state, exchange.offer, exchange.reason
        verdict: UploadResult | Cancel = Cancel(round=exchange.round, reason=reason)
        if offer is not None and state in (ExchangeState.DONE, ExchangeState.REJECTED):
            is_accepted, blob = state is ExchangeState.DONE, offer.manifest.id
            verdict = UploadResult(
                round=exchange.round, id=blob, accepted=is_accepted, reason=reason
            )
        self._verdicts[exchange.device] = verdict
        self._publisher.publish(exchange.device, verdict)

    def repeat(self, device: str, round_id: int, default: str) -> None:
        """Send the verdict of a round again; if there is none, cancel with `default` as reason."""
        verdict = self._verdicts.get(device)
        if verdict is None or verdict.round != round_id:
            verdict = Cancel(round=round_id, reason=default)
        self._publisher.publish(device, verdict)


class Receiver:
    """A part of a run beside its rounds that waits for messages of devices; by default for none."""

    def open_devices(self) -> Sequence[str]:
        """Return the devices whose message is expected."""
        return ()

    def mark_lost(self, device: str, reason: str) -> None:
        """Expect nothing of a device that has been gone for too long."""

    def on_message(self, device: str, message: EvaluateReply | PersonalScore) -> None:
        """A device sends a result."""

    def on_failed(self, device: str, failed: Failed) -> bool:
        """A device reports a failure; return whether it is one of this part."""
        return False

    def on_hello(self, device: str, is_other_process: bool) -> None:
        """A device has (re)connected."""

    def on_idle(self, device: str) -> None:
        """A device reports the phase idle."""

    def on_link_down(self) -> None:
        """The coordinator lost its link."""

    def on_link_up(self) -> None:
        """The coordinator's link is up."""


class RoundExecutor:
    """Executes one round at a time, and the open exchanges of earlier ones.

    A message about any other exchange is answered with the verdict of that exchange, or ignored.
    """

    def __init__(
        self,
        publisher: Publisher,
        uploads: Uploads,
        event_log: EventLog,
        group: TaskGroup,
        monitor: HostMonitor | None = None,
        lag_s: LagAt = lambda instants: 0.0,
    ) -> None:
        self._publisher = publisher
        self._uploads = uploads
        self._event_log = event_log
        self._group = group
        self._echo = Echo(publisher, event_log.now)
        self._contention = HostContention(monitor, lag_s)
        self._table: Round | None = None
        self._merge: RoundMerge | None = None
        self._trains: dict[str, Train] = {}
        """The `Train` message of each device in the table."""
        self._bases: dict[str, Vector] = {}
        """The model that each device in the table was sent, shape (n_values,)."""
        self._being_added: set[str] = set()
        """Devices whose accepted update is being added to a merge."""
        self._verdicts = ExchangeVerdicts(publisher)
        self._sent_at: dict[str, float] = {}
        """When each `Train` message was last sent."""
        self._is_linked = False
        self._changed: anyio.Event | None = None
        """Set when the table changes; None while no task waits for that."""

    def open(self, table: Round, merge: RoundMerge) -> None:
        """Make `table` the receiver of all events, and end exchanges that are too stale for it.

        Args:
            table: The table; it may carry exchanges of the previous one.
            merge: Receives the updates; it may begin later.
        """
        self._table, self._merge = table, merge
        open_ = {x.device for x in table.carried.values() if x.state.is_open}
        self._trains = {device: self._trains[device] for device in open_}
        self._bases = {device: self._bases[device] for device in open_}
        self._contention.retain(open_)
        for action in table.drop_stale(self._event_log.now()):
            self._execute(action, table)
        self._on(Tick())

    def dispatch(self, table: Round, trains: Mapping[str, Train], model: Vector) -> None:
        """Send devices their `Train` messages and open their exchanges.

        Args:
            table: The open table.
            trains: The message of each device.
            model: The model that they download, shape (n_values,).
        """
        now = self._event_log.now()
        for device, train in trains.items():
            self._trains[device], self._bases[device] = train, model
            table.dispatch(device, now)
            self._contention.begin(device)
        if not self._is_linked:
            table.on_link_down(now)
        for device in trains:
            self._send_train(device)
        self._on(Tick())

    async def wait_over(self, table: Round) -> None:
        """Wait until the open table expects no further update for its round.

        The merge may still be adding the last accepted updates.
        """
        while not table.is_over:
            await self._next_change()

    async def wait_exchange_end(self, table: Round) -> None:
        """Wait until one more exchange of the open table has ended."""
        ended = len(table.ended)
        while len(table.ended) == ended:
            await self._next_change()

    async def wait_changed(self, timeout_s: float) -> None:
        """Wait until the open table has changed, or for `timeout_s`."""
        with anyio.move_on_after(timeout_s):
            await self._next_change()

    async def watch_deadlines(self) -> None:
        """Report each deadline that passes to the open table, even between rounds."""
        while True:
            wake_at = None if self._table is None else self._table.wake_at()
            if wake_at is None:
                await self._next_change()
                continue
            left_s = wake_at - self._event_log.now()
            if left_s > 0.0:
                await self.wait_changed(left_s)
            else:
                await anyio.sleep(0.0)
                self._on(Tick())

    def end_all(self, reason: str) -> None:
        """End every exchange of the open table."""
        if self._table is not None:
            for action in self._table.end_all(reason, self._event_log.now()):
                self._execute(action, self._table)
            self._notify()

    def open_devices(self) -> list[str]:
        """Return the devices whose exchange is open."""
        if self._table is None:
            return []
        return [x.device for x in self._table.all_exchanges() if x.state.is_open]

    @property
    def in_memory(self) -> Collection[str]:
        """Devices whose accepted update is being added to a merge."""
        return self._being_added

    def mark_lost(self, device: str, reason: str) -> None:
        """End the exchange of a device that has been gone for too long."""
        self._on(DeviceLost(device, reason))

    def exclude(self, device: str, reason: str = "excluded by an operator") -> None:
        """Cancel the exchange of a device, as an operator demands."""
        self._on(Excluded(device, reason))

    def on_link_down(self) -> None:
        """The coordinator lost its link: suspend all deadlines."""
        self._is_linked = False
        if self._table is not None:
            self._table.on_link_down(self._event_log.now())

    def on_link_up(self) -> None:
        """The coordinator's link is up: resume all deadlines."""
        self._is_linked = True
        if self._table is not None:
            self._table.on_link_up(self._event_log.now())
            self._on(Tick())

    def on_hello(self, device: str, is_other_process: bool) -> None:
        """A device has (re)connected: repeat messages that it may have missed.

        A restarted agent has lost its work, so its exchange ends.
        """
        exchange = self._table.find(device) if self._table else None
        if exchange is None or not exchange.state.is_open:
            return
        if is_other_process:
            self._on(DeviceLost(device, "the agent was restarted, or another one has its name"))
        elif exchange.state is ExchangeState.DISPATCHED:
            self._send_train(device)
        elif exchange.state is ExchangeState.GRANTED:
            self._send_grant(device)

    def on_idle(self, device: str) -> None:
        """A device reports the phase idle: its `Train` message or its reply was lost."""
        exchange = self._table.find(device) if self._table else None
        if exchange is None or exchange.state is not ExchangeState.DISPATCHED:
            return
        if self._event_log.now() - self._sent_at[device] > RESEND_S:
            self._send_train(device)

    def on_offer(self, device: str, offer: Offer) -> None:
        """A device has trained and requests an upload grant."""
        train, exchange = self._find_open(device, offer.round)
        if train is None or exchange is None or offer.attempt != train.attempt:
            self._verdicts.repeat(device, offer.round, "this round is not open for this device")
            return
        elapsed_s = self._event_log.now() - exchange.dispatched
        fault = fault_in_offer(self._uploads, offer, train) or fault_in_report(
            offer, elapsed_s, self._uploads.limits
        )
        if fault is not None:
            self._on(BrokeProtocol(device, fault))
        elif exchange.state is ExchangeState.GRANTED and exchange.offer == offer:
            self._send_grant(device)  # A repeated offer: the grant was lost.
        else:
            was_new = exchange.offered is None
            self._on(Offered(device, offer))
            if was_new and exchange.offered is not None:
                self._contention.on_offer(exchange, exchange.offered)

    def expects_frame(self, device: str) -> bool:
        """Return whether the upload of a device is open."""
        return self._table is not None and self._uploads.is_open(device)

    def on_frame(self, device: str, frame: Buffer) -> None:
        """A chunk of an update has arrived."""
        if self._table is None:
            return
        try:
            bitmap, complete = self._uploads.on_frame(device, frame)
        except DecodeError as exc:
            self._event_log.warn("bad chunk", str(exc), device=device, round_id=self._table.id)
            return
        exchange = self._table.find(device)
        offer = None if exchange is None else exchange.offer
        if bitmap is not None and offer is not None:
            self._publisher.publish(device, UploadAck(id=offer.manifest.id, received=bitmap), qos=0)
        if complete is not None:
            self._on_complete(device, complete)

    def on_done(self, device: str, done: UploadDone) -> None:
        """A device sends the hash of its update, or repeats it because it has no verdict."""
        train, _ = self._find_open(device, done.round)
        if train is None:
            self._verdicts.repeat(device, done.round, "this round is over")
            return
        if done.model != train.model.sha256:
            self._on(BrokeProtocol(device, OTHER_MODEL))
            return
        if done.measured and (fault := fault_in_measured(done.measured, Source.UPLOAD)):
            self._on(BrokeProtocol(device, f"upload: {fault}"))
            return
        complete = self._uploads.on_done(device, done)
        if complete is not None:
            self._on_complete(device, complete)

    def on_failed(self, device: str, failed: Failed) -> None:
        """A device reports that it cannot finish its exchange."""
        if self._find_open(device, failed.round)[0] is not None:
            self._on(DeviceFailed(device, f"{failed.phase}: {failed.reason}"))

    def on_pong(self, device: str, pong: Pong) -> None:
        """A pong has arrived."""
        self._echo.on_pong(device, pong)

    def _find_open(self, device: str, round_id: int) -> tuple[Train | None, Exchange | None]:
        """Return a device's open exchange and its `Train` message, if it belongs to the round."""
        exchange = self._table.find(device) if self._table else None
        if exchange is None or exchange.round != round_id or not exchange.state.is_open:
            return None, None
        return self._trains.get(device), exchange

    def _on_complete(self, device: str, complete: CompletedUpload) -> None:
        exchange = self._table.find(device) if self._table else None
        if exchange is None:
            return
        exchange.measured.update(complete.measured)
        exchange.steady = complete.steady
        self._contention.on_end(exchange, complete.at)
        self._on(
            Arrived(
                device, at=complete.at, bytes_up=complete.bytes_up, duplicates=complete.duplicates
            )
        )

    def _on(self, event: Event) -> None:
        if self._table is None:
            return
        for action in self._table.on(event, self._event_log.now()):
            self._execute(action, self._table)
        self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _next_change(self) -> None:
        """Wait until the table changes."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _execute(self, action: Action, table: Round) -> None:
        device, exchange = action.device, table.find(action.device)
        assert exchange is not None, "an action is about an exchange"
        match action:
            case GrantUpload():
                assert exchange.offer is not None
                manifest, codec = exchange.offer.manifest, update_codec(self._trains[device])
                self._uploads.open(
                    device,
                    manifest,
                    upload_window(manifest),
                    codec,
                    self._bases[device],
                    self._trains[device].privacy,
                )
                self._send_grant(device)
            case VerifyUpdate():
                self._group.start_soon(self._verify, device, exchange)
            case AcceptUpdate():
                self._verdicts.send(exchange)
            case MarkLate(reason=reason):
                self._event_log.event("straggler", reason, device=device, round_id=exchange.round)
            case Abandon(reason=reason):
                state = exchange.state
                if state is ExchangeState.LATE:
                    self._contention.on_end(exchange, self._event_log.now())
                if state is ExchangeState.CANCELLED:
                    self._event_log.event(
                        "cancelled", reason, device=device, round_id=exchange.round
                    )
                else:
                    self._event_log.event(
                        state.value, reason, level="warning", device=device, round_id=exchange.round
                    )
                self._uploads.discard(device)
                self._verdicts.send(exchange)

    def _send_train(self, device: str) -> None:
        self._sent_at[device] = self._event_log.now()
        self._publisher.publish(device, self._trains[device])
        exchange = self._table.find(device) if self._table else None
        if exchange is not None:
            self._echo.ping(device, exchange)

    def _send_grant(self, device: str) -> None:
        exchange = self._table.find(device) if self._table else None
        if exchange is None or exchange.offer is None:
            return
        manifest = exchange.offer.manifest
        grant = Grant(round=exchange.round, id=manifest.id, window=upload_window(manifest))
        self._publisher.publish(device, grant)

    async def _verify(self, device: str, exchange: Exchange) -> None:
        """Verify an update; if the table accepts it, add it to the merge, then free its memory.

        If the round closes meanwhile, the merge of the next round receives the update, once it
        has begun.
        """
        fault = await self._uploads.check(device)
        while (merge := self._merge) is not None:
            await merge.wait_begun()
            async with merge.lock:
                if merge is not self._merge:
                    continue
                if exchange.is_over:
                    return
                decode_s = self._uploads.decode_s(device)
                if decode_s is not None:
                    exchange.measured["coordinator_decode_s"] = decode_s
                self._on(Checked(device, fault))
                if exchange.state is ExchangeState.DONE:
                    self._being_added.add(device)
                    vector, base = self._uploads.vector(device), self._bases.get(device)
                    await merge.add(exchange, vector, base, self._uploads.raw(device))
                    self._uploads.release(device)
                    self._being_added.discard(device)
                    self._notify()
                return
