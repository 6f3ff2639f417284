"""One round as it is played: events go into the table, its orders go out over the wire."""

from collections.abc import Mapping

import anyio
from anyio.abc import TaskGroup

from coordinator.algorithms.arrays import Vector
from coordinator.coding import pulled_blob, update_codec
from coordinator.journal import Journal
from coordinator.merging import Merging
from coordinator.ports import HostWatch, Waiting
from coordinator.post import Post
from coordinator.round import (
    Abandon,
    Accept,
    Arrived,
    Check,
    Checked,
    Event,
    Exchange,
    Excluded,
    GaveUp,
    GrantUpload,
    Misbehaved,
    Offered,
    Order,
    Round,
    Stage,
    Starved,
    Tick,
    Vanished,
    upload_window,
)
from coordinator.uploads import Complete, Uploads
from wire.codec import Buffer
from wire.errors import DecodeError
from wire.messages import (
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

UPLOAD_MEMORY_BYTES = 256_000_000
MIN_SLOTS, MAX_SLOTS = 2, 16
"""G = clamp(256 MB / vector, 2, 16) updates in memory at the same time (design.md, Transfer)."""


ASK_AGAIN_S = 2.0
"""A device that is idle this long after it was asked to train has not heard it."""


def slots(update_bytes: int) -> int:
    """Return how many updates of this size may be in memory at the same time."""
    return min(max(UPLOAD_MEMORY_BYTES // max(update_bytes, 1), MIN_SLOTS), MAX_SLOTS)


class Player:
    """Plays one round at a time; messages about anything else are ignored."""

    def __init__(
        self,
        post: Post,
        uploads: Uploads,
        journal: Journal,
        group: TaskGroup,
        watch: HostWatch | None = None,
    ) -> None:
        self._post = post
        self._uploads = uploads
        self._journal = journal
        self._group = group
        self._watch = watch
        self._waited: dict[str, Waiting] = {}
        """What each device had suffered when it was asked to train."""
        self._round: Round | None = None
        self._merging: Merging | None = None
        self._trains: dict[str, Train] = {}
        self._pings: dict[str, tuple[int, float]] = {}
        """Number and instant of the last ping to each device."""
        self._ping_seq = 0
        self._asked_at: dict[str, float] = {}
        self._is_linked = False
        self._moved = anyio.Event()

    async def play(
        self, played: Round, trains: Mapping[str, Train], merging: Merging, model: Vector
    ) -> None:
        """Dispatch, then carry out what the table orders until nothing more can arrive.

        The last accepted updates may still be on their way into `merging`.

        Args:
            played: The table.
            trains: What each device is asked.
            merging: Where the updates go.
            model: What the devices are sent, shape (n_values,).
        """
        self._round, self._trains, self._merging = played, dict(trains), merging
        self._uploads.begin(model)
        self._pings.clear()
        self._waited.clear()
        now = self._journal.now()
        for device in trains:
            played.dispatch(device, now)
            waiting = None if self._watch is None else self._watch.waiting(device)
            if waiting is not None:
                self._waited[device] = waiting
        if not self._is_linked:
            played.hold(now)
        for device in trains:
            self._dispatch(device)
        while not played.is_over:
            moved = self._moved
            wake_at = played.wake_at()
            timeout = None if wake_at is None else max(wake_at - self._journal.now(), 0.0)
            with anyio.move_on_after(timeout):
                await moved.wait()
            self._on(Tick())

    def finish(self) -> None:
        """Forget the round; what still arrives for it is too late."""
        self._round, self._merging = None, None
        self._trains.clear()
        self._uploads.clear()

    def on_hello(self, device: str, is_other_process: bool) -> None:
        """A device (re)connected: repeat what it may have missed, or give its exchange up."""
        exchange = self._round.exchanges.get(device) if self._round else None
        if exchange is None or not exchange.stage.is_open:
            return
        if is_other_process:
            self._on(Vanished(device, "the agent was restarted, or another one has its name"))
        elif exchange.stage is Stage.ASKED:
            self._dispatch(device)
        elif exchange.stage is Stage.GRANTED:
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
        exchange = self._round.exchanges.get(device) if self._round else None
        if exchange is None or exchange.stage is not Stage.ASKED:
            return
        if self._journal.now() - self._asked_at[device] > ASK_AGAIN_S:
            self._dispatch(device)

    def on_offer(self, device: str, offer: Offer) -> None:
        """A device has trained."""
        train = self._expected(device, offer.round)
        if train is None or offer.attempt != train.attempt:
            self._post.say(
                device, Cancel(round=offer.round, reason="this round is not open for you")
            )
            return
        assert self._round is not None
        exchange = self._round.exchanges[device]
        if not exchange.stage.is_open:
            self._say_last_word(exchange, self._round)
            return
        fault = self._fault_in_offer(device, offer, train)
        if fault is not None:
            self._on(Misbehaved(device, fault))
        elif exchange.stage is Stage.GRANTED and exchange.offer == offer:
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
        offer = self._round.exchanges[device].offer if device in self._round.exchanges else None
        if bitmap is not None and offer is not None:
            self._post.say(device, UploadAck(id=offer.manifest.id, received=bitmap), qos=0)
        if complete is not None:
            self._on_complete(device, complete)

    def on_done(self, device: str, done: UploadDone) -> None:
        """The hash of an update, or a question what became of it."""
        if self._round is None or self._expected(device, done.round) is None:
            self._post.say(device, Cancel(round=done.round, reason="this round is over"))
            return
        exchange = self._round.exchanges[device]
        if not exchange.stage.is_open:
            self._say_last_word(exchange, self._round)
            return
        complete = self._uploads.on_done(device, done)
        if complete is not None:
            self._on_complete(device, complete)

    def on_failed(self, device: str, failed: Failed) -> None:
        """A device gives up."""
        if self._expected(device, failed.round) is not None:
            self._on(GaveUp(device, f"{failed.phase}: {failed.reason}"))

    def on_pong(self, device: str, pong: Pong) -> None:
        """The echo came back."""
        seq, sent = self._pings.get(device, (None, 0.0))
        if self._round is not None and pong.seq == seq:
            self._round.exchanges[device].signal_s = self._journal.now() - sent
            del self._pings[device]

    def vanish(self, device: str, why: str) -> None:
        """A device has been gone for too long."""
        self._on(Vanished(device, why))

    def exclude(self, device: str) -> None:
        """A person took a device out."""
        self._on(Excluded(device))

    def open_devices(self) -> list[str]:
        """Return who is still expected to answer."""
        if self._round is None:
            return []
        return [x.device for x in self._round.exchanges.values() if x.stage.is_open]

    def _expected(self, device: str, round_id: int) -> Train | None:
        if self._round is None or self._round.id != round_id:
            return None
        return self._trains.get(device)

    def _fault_in_offer(self, device: str, offer: Offer, train: Train) -> str | None:
        fault = self._uploads.fault_in_offer(offer.manifest, update_codec(train))
        if fault is not None:
            return fault
        if pulled_blob(train, offer) is None:
            return "offer: the model must have come in a blob that was announced"
        if offer.n_k < 1:
            return f"offer: n_k must be at least 1, got {offer.n_k}"
        if train.needs_loss and offer.loss_before is None:
            return "offer: loss_before is missing, and the aggregation rule needs it"
        return None

    def _on_complete(self, device: str, complete: Complete) -> None:
        assert self._round is not None
        exchange = self._round.exchanges[device]
        exchange.resent_up, exchange.settled = complete.resent, complete.settled
        self._note_starvation(exchange)
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
        device = order.device
        match order:
            case GrantUpload():
                offer = played.exchanges[device].offer
                assert offer is not None
                codec = update_codec(self._trains[device])
                self._uploads.open(device, offer.manifest, upload_window(offer.manifest), codec)
                self._grant(device)
            case Check():
                assert self._merging is not None
                self._group.start_soon(self._check, device, played, self._merging)
            case Accept():
                self._say_last_word(played.exchanges[device], played)
            case Abandon(why=why):
                stage = played.exchanges[device].stage
                if stage is Stage.LATE:
                    self._note_starvation(played.exchanges[device])
                if stage is Stage.CANCELLED:
                    self._journal.event("cancelled", why, device=device, round_id=played.id)
                else:
                    self._journal.event(
                        stage.value, why, level="warning", device=device, round_id=played.id
                    )
                self._uploads.forget(device)
                self._say_last_word(played.exchanges[device], played)

    def _note_starvation(self, exchange: Exchange) -> None:
        """Take note of what the device has suffered since it was asked to train."""
        before = self._waited.get(exchange.device)
        after = None if self._watch is None else self._watch.waiting(exchange.device)
        if before is not None and after is not None:
            exchange.starved = Starved(
                device_s=max(0.0, after.device_s - before.device_s),
                path_s=max(0.0, after.path_s - before.path_s),
                watched_s=self._journal.now() - exchange.dispatched,
            )

    def _dispatch(self, device: str) -> None:
        self._asked_at[device] = self._journal.now()
        self._post.say(device, self._trains[device])
        self._ping_seq += 1
        self._pings[device] = (self._ping_seq, self._journal.now())
        self._post.say(device, Ping(seq=self._ping_seq), qos=0)

    def _grant(self, device: str) -> None:
        exchange = self._round.exchanges.get(device) if self._round else None
        if exchange is None or exchange.offer is None or self._round is None:
            return
        manifest = exchange.offer.manifest
        grant = Grant(round=self._round.id, id=manifest.id, window=upload_window(manifest))
        self._post.say(device, grant)

    async def _check(self, device: str, played: Round, merging: Merging) -> None:
        """Verify an update; if the table then accepts it, add it, and only then give it back."""
        fault = await self._uploads.check(device)
        async with merging.turn:
            if self._round is not played:
                return
            exchange = played.exchanges[device]
            exchange.decode_s = self._uploads.decode_s(device)
            self._on(Checked(device, fault))
            if exchange.stage is Stage.DONE:
                await merging.add(exchange, self._uploads.vector(device))
                self._uploads.release(device)

    def _say_last_word(self, exchange: Exchange, played: Round) -> None:
        """Tell a device what became of its exchange, also when it asks again."""
        stage, offer, why = exchange.stage, exchange.offer, exchange.why
        word: Received | Cancel = Cancel(round=played.id, reason=why)
        if offer is not None and stage in (Stage.DONE, Stage.REJECTED):
            is_accepted = stage is Stage.DONE
            word = Received(round=played.id, id=offer.manifest.id, accepted=is_accepted, reason=why)
        self._post.say(exchange.device, word)
