"""One round as it is played: events go into the table, its orders go out over the wire.

How long a control message takes to a device and back, measured once in each exchange.

For how long the machine that emulates a device has kept others waiting in an exchange.

What devices are told of exchanges that are over, also when they ask again.
"""

from collections.abc import Callable, Collection, Mapping

import anyio
from anyio.abc import TaskGroup

from fairbed.coordinator.algorithms.arrays import Vector
from fairbed.coordinator.fleet.codec_agreement import update_codec
from fairbed.coordinator.fleet.uploads import Complete, Uploads, fault_in_offer
from fairbed.coordinator.messaging.publisher import Publisher
from fairbed.coordinator.ports import HostWatch, Waiting
from fairbed.coordinator.rounds.merging import Merging
from fairbed.coordinator.state.exchange import Contention, Exchange, ExchangeState, upload_window
from fairbed.coordinator.state.round import (
    Abandon,
    Accept,
    Arrived,
    Check,
    Checked,
    Event,
    Excluded,
    GaveUp,
    GoesOn,
    GrantUpload,
    Misbehaved,
    Offered,
    Order,
    Round,
    Tick,
    Vanished,
)
from fairbed.coordinator.store.event_log import EventLog
from fairbed.wire.codec import Buffer
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import (
    Cancel,
    Failed,
    Grant,
    Offer,
    Ping,
    Pong,
    Received,
    Train,
    UploadAck,
    UploadDone,
)


class Echo:
    """Sends pings, and writes into an exchange what its last one took."""

    def __init__(self, post: Publisher, now: Callable[[], float]) -> None:
        self._post = post
        self._now = now
        self._open: dict[str, tuple[int, float, Exchange]] = {}
        """Number and instant of the last ping to each device, and what it was sent in."""
        self._count = 0

    def ping(self, device: str, exchange: Exchange) -> None:
        """Ask a device for an echo; one that was asked for before is of no use any more."""
        self._count += 1
        self._open[device] = (self._count, self._now(), exchange)
        self._post.say(device, Ping(seq=self._count), qos=0)

    def on_pong(self, device: str, pong: Pong) -> None:
        """The echo came back."""
        ping = self._open.get(device)
        if ping is not None and pong.seq == ping[0]:
            _, sent, exchange = self._open.pop(device)
            exchange.signal_s = self._now() - sent


class HostContention:
    """Looks at a device when it is asked to train, and when its exchange is at an end.

    Args:
        watch: Watches the machine; None where nothing is emulated.
        now: Monotonic seconds.
    """

    def __init__(self, watch: HostWatch | None, now: Callable[[], float]) -> None:
        self._watch = watch
        self._now = now
        self._before: dict[str, Waiting] = {}
        """What each device had suffered when it was asked to train."""

    def begin(self, device: str) -> None:
        """A device is being asked to train."""
        self._before.pop(device, None)
        waiting = None if self._watch is None else self._watch.waiting(device)
        if waiting is not None:
            self._before[device] = waiting

    def keep(self, devices: Collection[str]) -> None:
        """Forget all others."""
        self._before = {k: waiting for k, waiting in self._before.items() if k in devices}

    def note(self, exchange: Exchange) -> None:
        """Write into an exchange what its device has suffered since it was asked to train."""
        before = self._before.get(exchange.device)
        after = None if self._watch is None else self._watch.waiting(exchange.device)
        if before is not None and after is not None:
            exchange.contended = Contention(
                device_s=max(0.0, after.device_s - before.device_s),
                path_s=max(0.0, after.path_s - before.path_s),
                watched_s=self._now() - exchange.dispatched,
            )


class ExchangeVerdicts:
    """Says them, and remembers one a device."""

    def __init__(self, post: Publisher) -> None:
        self._post = post
        self._words: dict[str, Received | Cancel] = {}

    def say(self, exchange: Exchange) -> None:
        """Tell a device what became of its exchange."""
        stage, offer, why = exchange.stage, exchange.offer, exchange.why
        word: Received | Cancel = Cancel(round=exchange.round, reason=why)
        if offer is not None and stage in (ExchangeState.DONE, ExchangeState.REJECTED):
            is_accepted, blob = stage is ExchangeState.DONE, offer.manifest.id
            word = Received(round=exchange.round, id=blob, accepted=is_accepted, reason=why)
        self._words[exchange.device] = word
        self._post.say(exchange.device, word)

    def repeat(self, device: str, round_id: int, otherwise: str) -> None:
        """Tell a device again what became of its exchange, or that nothing will."""
        word = self._words.get(device)
        if word is None or word.round != round_id:
            word = Cancel(round=round_id, reason=otherwise)
        self._post.say(device, word)


ASK_AGAIN_S = 2.0
"""A device that is idle this long after it was asked to train has not heard it."""


class RoundExecutor:
    """Plays one round at a time; messages about anything else are ignored."""

    def __init__(
        self,
        post: Publisher,
        uploads: Uploads,
        journal: EventLog,
        group: TaskGroup,
        watch: HostWatch | None = None,
    ) -> None:
        self._post = post
        self._uploads = uploads
        self._journal = journal
        self._group = group
        self._echo = Echo(post, journal.now)
        self._hardship = HostContention(watch, journal.now)
        self._round: Round | None = None
        self._merging: Merging | None = None
        self._trains: dict[str, Train] = {}
        """What each device whose exchange is in the table was asked."""
        self._bases: dict[str, Vector] = {}
        """The model that each of them was sent, shape (n_values,)."""
        self._adding: set[str] = set()
        """Whose accepted updates are on their way into a merge."""
        self._last_words = ExchangeVerdicts(post)
        self._asked_at: dict[str, float] = {}
        self._is_linked = False
        self._moved = anyio.Event()

    def open(self, played: Round, merging: Merging) -> None:
        """Make this the table that everything goes to; what it does not carry on is too late.

        Args:
            played: The table, whose own devices are yet to be asked.
            merging: Where the updates go; it may begin later.
        """
        self._round, self._merging = played, merging
        open_ = {x.device for x in played.carried.values() if x.stage.is_open}
        self._trains = {device: self._trains[device] for device in open_}
        self._bases = {device: self._bases[device] for device in open_}
        self._hardship.keep(open_)
        for order in played.drop_stale(self._journal.now()):
            self._carry_out(order, played)
        self._move()

    async def play(
        self, played: Round, trains: Mapping[str, Train], merging: Merging, model: Vector
    ) -> None:
        """Dispatch, then carry out what the table orders until nothing is waited for any more.

        The last accepted updates may still be on their way into `merging`.

        Args:
            played: The table.
            trains: What each device is asked.
            merging: Where the updates go.
            model: What the devices are sent, shape (n_values,).
        """
        if self._round is not played:
            self.open(played, merging)
        self.ask(played, trains, model)
        while not played.is_over:
            await self._moved.wait()

    async def wait_end(self, played: Round) -> None:
        """Wait until one more exchange of the open table is over."""
        ended = len(played.ended)
        while len(played.ended) == ended:
            await self._moved.wait()

    async def keep_time(self) -> None:
        """Tell the open table when a deadline passes, also while no round is being played."""
        while True:
            moved = self._moved
            wake_at = None if self._round is None else self._round.wake_at()
            timeout = None if wake_at is None else max(wake_at - self._journal.now(), 0.0)
            with anyio.move_on_after(timeout):
                await moved.wait()
            self._on(Tick())

    def give_up(self, why: str) -> None:
        """End every exchange of the open table: nobody will wait for it."""
        if self._round is not None:
            for order in self._round.give_up(why, self._journal.now()):
                self._carry_out(order, self._round)
            self._move()

    def ask(self, played: Round, trains: Mapping[str, Train], model: Vector) -> None:
        """Ask devices to train `model`, shape (n_values,), in the round that is open."""
        now = self._journal.now()
        for device, train in trains.items():
            self._trains[device], self._bases[device] = train, model
            played.dispatch(device, now)
            self._hardship.begin(device)
        if not self._is_linked:
            played.hold(now)
        for device in trains:
            self._dispatch(device)
        self._move()

    def on_hello(self, device: str, is_other_process: bool) -> None:
        """A device (re)connected: repeat what it may have missed, or give its exchange up."""
        exchange = self._round.find(device) if self._round else None
        if exchange is None or not exchange.stage.is_open:
            return
        if is_other_process:
            self._on(Vanished(device, "the agent was restarted, or another one has its name"))
        elif exchange.stage is ExchangeState.ASKED:
            self._dispatch(device)
        elif exchange.stage is ExchangeState.GRANTED:
            self._grant(device)

    def on_link_down(self) -> None:
        """Our own link is gone: no open exchange lasts as long as the device made it."""
        self._is_linked = False
        if self._round is not None:
            self._round.hold(self._journal.now())

    def on_link_up(self) -> None:
        """Our own link is back."""
        self._is_linked = True
        if self._round is not None:
            self._round.go_on(self._journal.now())
            self._move()

    def on_idle(self, device: str) -> None:
        """A device says that it has nothing to do: what it was asked, or its answer, was lost."""
        exchange = self._round.find(device) if self._round else None
        if exchange is None or exchange.stage is not ExchangeState.ASKED:
            return
        if self._journal.now() - self._asked_at[device] > ASK_AGAIN_S:
            self._dispatch(device)

    def on_offer(self, device: str, offer: Offer) -> None:
        """A device has trained."""
        train, exchange = self._expected(device, offer.round)
        if train is None or exchange is None or offer.attempt != train.attempt:
            self._last_words.repeat(device, offer.round, "this round is not open for you")
            return
        fault = fault_in_offer(self._uploads, offer, train)
        if fault is not None:
            self._on(Misbehaved(device, fault))
        elif exchange.stage is ExchangeState.GRANTED and exchange.offer == offer:
            self._grant(device)  # it asks again: the grant was lost
        else:
            self._on(Offered(device, offer))

    def on_frame(self, device: str, frame: Buffer) -> None:
        """A chunk of an update."""
        if self._round is None:
            return
        try:
            bitmap, complete = self._uploads.on_frame(device, frame)
        except DecodeError as exc:
            self._journal.complaint("bad chunk", str(exc), device=device, round_id=self._round.id)
            return
        exchange = self._round.find(device)
        offer = None if exchange is None else exchange.offer
        if bitmap is not None and offer is not None:
            self._post.say(device, UploadAck(id=offer.manifest.id, received=bitmap), qos=0)
        if complete is not None:
            self._on_complete(device, complete)

    def on_done(self, device: str, done: UploadDone) -> None:
        """The hash of an update, or a question what became of it."""
        if self._expected(device, done.round)[0] is None:
            self._last_words.repeat(device, done.round, "this round is over")
            return
        complete = self._uploads.on_done(device, done)
        if complete is not None:
            self._on_complete(device, complete)

    def on_failed(self, device: str, failed: Failed) -> None:
        """A device gives up."""
        if self._expected(device, failed.round)[0] is not None:
            self._on(GaveUp(device, f"{failed.phase}: {failed.reason}"))

    def on_pong(self, device: str, pong: Pong) -> None:
        """The echo came back."""
        self._echo.on_pong(device, pong)

    def vanish(self, device: str, why: str) -> None:
        """A device has been gone for too long."""
        self._on(Vanished(device, why))

    def exclude(self, device: str) -> None:
        """A person took a device out."""
        self._on(Excluded(device))

    def is_through(self, exchange: Exchange) -> bool:
        """Tell whether an exchange is over, and nothing of it is in memory any more."""
        return exchange.is_over and exchange.device not in self._adding

    async def wait_moved(self, timeout_s: float) -> None:
        """Wait until something happened in the open table, or for `timeout_s`."""
        moved = self._moved
        with anyio.move_on_after(timeout_s):
            await moved.wait()

    def open_devices(self) -> list[str]:
        """Return who is still expected to answer."""
        if self._round is None:
            return []
        return [x.device for x in self._round.everybody() if x.stage.is_open]

    def _expected(self, device: str, round_id: int) -> tuple[Train | None, Exchange | None]:
        """Return a device's open exchange and what it was asked, if it is of this round."""
        exchange = self._round.find(device) if self._round else None
        if exchange is None or exchange.round != round_id or not exchange.stage.is_open:
            return None, None
        return self._trains.get(device), exchange

    def _on_complete(self, device: str, complete: Complete) -> None:
        exchange = self._round.find(device) if self._round else None
        if exchange is None:
            return
        exchange.resent_up, exchange.settled = complete.resent, complete.settled
        self._hardship.note(exchange)
        self._on(
            Arrived(
                device, at=complete.at, bytes_up=complete.bytes_up, duplicates=complete.duplicates
            )
        )

    def _on(self, event: Event) -> None:
        if self._round is None:
            return
        for order in self._round.on(event, self._journal.now()):
            self._carry_out(order, self._round)
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = anyio.Event()

    def _carry_out(self, order: Order, played: Round) -> None:
        device, exchange = order.device, played.find(order.device)
        assert exchange is not None, "an order is about an exchange"
        match order:
            case GrantUpload():
                assert exchange.offer is not None
                manifest, codec = exchange.offer.manifest, update_codec(self._trains[device])
                self._uploads.open(
                    device, manifest, upload_window(manifest), codec, self._bases[device]
                )
                self._grant(device)
            case Check():
                self._group.start_soon(self._check, device, exchange)
            case Accept():
                self._last_words.say(exchange)
            case GoesOn(why=why):
                self._journal.event("goes on", why, device=device, round_id=exchange.round)
            case Abandon(why=why):
                stage = exchange.stage
                if stage is ExchangeState.LATE:
                    self._hardship.note(exchange)
                if stage is ExchangeState.CANCELLED:
                    self._journal.event("cancelled", why, device=device, round_id=exchange.round)
                else:
                    self._journal.event(
                        stage.value, why, level="warning", device=device, round_id=exchange.round
                    )
                self._uploads.forget(device)
                self._last_words.say(exchange)

    def _dispatch(self, device: str) -> None:
        self._asked_at[device] = self._journal.now()
        self._post.say(device, self._trains[device])
        exchange = self._round.find(device) if self._round else None
        if exchange is not None:
            self._echo.ping(device, exchange)

    def _grant(self, device: str) -> None:
        exchange = self._round.find(device) if self._round else None
        if exchange is None or exchange.offer is None:
            return
        manifest = exchange.offer.manifest
        grant = Grant(round=exchange.round, id=manifest.id, window=upload_window(manifest))
        self._post.say(device, grant)

    async def _check(self, device: str, exchange: Exchange) -> None:
        """Verify an update; if the table then accepts it, add it, and only then give it back.

        Its round may close meanwhile and another take it over, whose merge begins later.
        """
        fault = await self._uploads.check(device)
        while (merging := self._merging) is not None:
            await merging.wait_begun()
            async with merging.turn:
                if merging is not self._merging:
                    continue
                if exchange.is_over:
                    return
                exchange.decode_s = self._uploads.decode_s(device)
                self._on(Checked(device, fault))
                if exchange.stage is ExchangeState.DONE:
                    self._adding.add(device)
                    vector, base = self._uploads.vector(device), self._bases.get(device)
                    await merging.add(exchange, vector, base)
                    self._uploads.release(device)
                    self._adding.discard(device)
                    self._move()
                return
