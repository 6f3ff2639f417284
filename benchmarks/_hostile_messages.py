"""What a device with a valid login tries against a run: one function for each kind of message.

`ON_OWN_TOPICS` are messages that the broker forwards, so that the coordinator must refuse them;
`ON_OTHER_TOPICS` those that the broker must not forward; `SUBSCRIPTIONS` the filters that must give
nothing.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from fairbed.wire.chunks import encode_chunk
from fairbed.wire.codec import encode
from fairbed.wire.messages import (
    MAX_VECTOR_BYTES,
    MIN_CHUNK_BYTES,
    PROTOCOL_VERSION,
    Cancel,
    Capabilities,
    ChunkRequest,
    Context,
    CoordinatorStatus,
    DataScale,
    EvaluateReply,
    Failed,
    Goodbye,
    Hello,
    Intent,
    LinkProbe,
    LogLine,
    LogLines,
    Manifest,
    Message,
    Offer,
    OperatorAnswer,
    OperatorCommand,
    PersonalScore,
    Phases,
    Pong,
    Refuse,
    Status,
    UploadDone,
    UploadResult,
)
from fairbed.wire.topics import LOCAL_OPERATOR, Topics

NAME = "mallory"
"""The hostile device."""
BOOT = 77
"""Of its agent process."""


class Attempt(NamedTuple):
    """One message."""

    topic: str
    payload: bytes
    retain: bool = False


class Place(NamedTuple):
    """What the hostile device knows."""

    topics: Topics
    rng: np.random.Generator
    victim: str
    """Another device."""

    def round(self) -> int:
        """Return some round."""
        return int(self.rng.integers(1, 1_000))

    def boot(self) -> int:
        """Return some agent process."""
        return int(self.rng.integers(1_000, 2**31))

    def manifest(self, size_bytes: int = 32 * 1024, chunk_bytes: int = 32 * 1024) -> Manifest:
        """Return the manifest of an update that was not requested."""
        return Manifest(
            id=self.rng.bytes(16), kind="update", size_bytes=size_bytes, chunk_bytes=chunk_bytes
        )


Kind: TypeAlias = Callable[[Place], Attempt]

_PHASES = Phases(
    download_s=0.0, load_s=0.0, evaluate_s=0.0, train_s=0.0, train_cpu_s=0.0, encode_s=0.0
)


def hello(boot: int, n_k: int = 40) -> Hello:
    """Return the hello of a device with data of its own."""
    capabilities = Capabilities(
        cores=4,
        memory_bytes=1 << 30,
        machine="aarch64",
        python="3.11",
        engine="onnxruntime 1.31.1",
        engine_threads=1,
        agent="0.1.0",
    )
    return Hello(boot=boot, capabilities=capabilities, n_k=n_k)


def not_ready(seq: int, boot: int = BOOT) -> Context:
    """Return the context of a device that is never selected."""
    return Context(boot=boot, seq=seq, mu_cores=4.0, is_ready=False, n_k=40)


def _offer(place: Place, **changes: object) -> Offer:
    values: dict[str, object] = {
        "round": place.round(),
        "manifest": place.manifest(),
        "model": place.rng.bytes(32),
        "phases": _PHASES,
        "n_k": 40,
        "steps": 1,
        "was_cold": False,
        "loss_before": 0.5,
    }
    return Offer(**(values | changes))  # type: ignore[arg-type]  # fields of Offer


def _changed(message: Message, **values: object) -> bytes:
    """Return the bytes of a message with values that its type forbids."""
    fields = msgspec.msgpack.decode(encode(message)[1:])
    return bytes([PROTOCOL_VERSION]) + msgspec.msgpack.encode(fields | values)


def _reply(place: Place) -> EvaluateReply:
    return EvaluateReply(
        round=place.round(),
        model=place.rng.bytes(32),
        loss=0.0,
        n=10,
        was_cold=False,
        download_s=0.0,
        decode_s=0.0,
        load_s=0.0,
        evaluate_s=0.0,
        correct=10,
    )


def _up(of: Callable[[Place], bytes | Message], *, retain: bool = False) -> Kind:
    def attempt(place: Place) -> Attempt:
        made = of(place)
        payload = encode(made) if isinstance(made, Message) else made
        return Attempt(place.topics.up(NAME), payload, retain)

    return attempt


def _on(
    topic: Callable[[Topics, str], str],
    of: Callable[[Place], bytes | Message],
    *,
    retain: bool = False,
) -> Kind:
    def attempt(place: Place) -> Attempt:
        made = of(place)
        payload = encode(made) if isinstance(made, Message) else made
        return Attempt(topic(place.topics, place.victim), payload, retain)

    return attempt


def _own_telemetry(of: Callable[[Place], bytes | Message], *, retain: bool = False) -> Kind:
    return _on(lambda t, _: t.telemetry(NAME), of, retain=retain)


def _intent(place: Place) -> Attempt:
    """Return 142 bytes that name two million chunks."""
    sha256 = place.rng.bytes(32)
    manifest = Manifest(
        id=sha256[:16],
        kind="model",
        size_bytes=MAX_VECTOR_BYTES,
        chunk_bytes=MIN_CHUNK_BYTES,
        sha256=sha256,
    )
    payload = encode(Intent(manifest=manifest, boot=place.boot()))
    return Attempt(place.topics.intent(sha256[:16].hex()), payload, retain=True)


ON_OWN_TOPICS: Mapping[str, Kind] = {
    "garbage": _up(lambda p: p.rng.bytes(int(p.rng.integers(1, 2_000)))),
    "cut message": _up(lambda p: encode(_offer(p))[: int(p.rng.integers(2, 60))]),
    "flipped bit": _up(lambda p: b"\x01" + bytes(b ^ 0x40 for b in encode(_offer(p))[1:])),
    "nested without end": _up(lambda p: bytes([PROTOCOL_VERSION]) + b"\x81\xa1a" * 20_000),
    "other protocol version": _up(lambda p: b"\xfe" + encode(_offer(p))[1:]),
    "message of a coordinator": _up(lambda p: Cancel(round=p.round())),
    "message of an operator": _up(lambda p: OperatorCommand(id=p.rng.bytes(16), action="stop")),
    "unknown field": _up(lambda p: _changed(_offer(p), more=1)),
    "number that is none": _up(lambda p: _changed(_offer(p), loss_before=math.nan)),
    "absurd number": _up(lambda p: _changed(_offer(p), n_k=2**63)),
    "negative round": _up(lambda p: _changed(_offer(p), round=-1)),
    "text of 100 kB": _up(
        lambda p: _changed(Failed(round=1, phase="train", reason=""), reason="x" * 100_000)
    ),
    "context that is not a number": _own_telemetry(
        lambda p: _changed(not_ready(1 << 40), mu_cores=math.inf)
    ),
    "stale context": _own_telemetry(lambda p: not_ready(0)),
    "context of another process": _own_telemetry(lambda p: not_ready(1 << 40, p.boot())),
    "kept context": _own_telemetry(lambda p: not_ready(0), retain=True),
    "kept hello": _up(lambda p: hello(BOOT), retain=True),
    "repeated hello": _up(lambda p: hello(BOOT)),
    "goodbye of another process": _on(
        lambda t, _: t.status(NAME), lambda p: Status(state="off", boot=p.boot())
    ),
    "offer of a foreign round": _up(_offer),
    "offer of a huge update": _up(lambda p: _offer(p, manifest=p.manifest(MAX_VECTOR_BYTES))),
    "replayed hash": _up(
        lambda p: UploadDone(
            round=p.round(), id=p.rng.bytes(16), sha256=p.rng.bytes(32), model=p.rng.bytes(32)
        )
    ),
    "failure of a foreign round": _up(
        lambda p: Failed(round=p.round(), phase="train", reason="tired")
    ),
    "loss that was not asked for": _up(_reply),
    "score that was not asked for": _up(lambda p: PersonalScore(round=p.round(), n=9, correct=9)),
    "echo that was not asked for": _up(lambda p: Pong(seq=p.round())),
    "log that was not asked for": _up(
        lambda p: LogLines(
            boot=p.boot(), first=0, lines=(LogLine(level="error", age_s=0.0, text="forged"),)
        )
    ),
    "scale that was not asked for": _up(
        lambda p: DataScale(boot=p.boot(), low=-1e38, high=1e38, mean=0.0, spread=1e38)
    ),
    "chunk without a grant": _on(
        lambda t, _: t.upload(NAME), lambda p: encode_chunk(p.rng.bytes(16), 0, bytes(32 * 1024))
    ),
    "chunk that is none": _on(lambda t, _: t.upload(NAME), lambda p: p.rng.bytes(100)),
    "request of an unknown blob": _up(
        lambda p: ChunkRequest(id=p.rng.bytes(16), chunks=list(range(64)))
    ),
    "link probe": _up(lambda p: LinkProbe(seq=p.round(), payload=bytes(1024), reply_bytes=1 << 16)),
}
"""The coordinator refuses them, ignores them, or answers them at a bounded rate."""

ON_OTHER_TOPICS: Mapping[str, Kind] = {
    "forged status of the coordinator": _on(
        lambda t, _: t.coordinator,
        lambda p: CoordinatorStatus(state="on", boot=0, run=f"forged {p.boot()}"),
        retain=True,
    ),
    "command of an operator": _on(
        lambda t, _: t.command(LOCAL_OPERATOR),
        lambda p: OperatorCommand(id=p.rng.bytes(16), action="stop"),
    ),
    "answer to an operator": _on(
        lambda t, _: t.answer(LOCAL_OPERATOR),
        lambda p: OperatorAnswer(id=p.rng.bytes(16), is_accepted=True, text="forged"),
    ),
    "goodbye to the fleet": _on(
        lambda t, _: t.control_all, lambda p: Goodbye(reason=f"forged {p.boot()}"), retain=True
    ),
    "final refusal of another device": _on(
        lambda t, name: t.control(name),
        lambda p: Refuse(reason=f"forged {p.boot()}", is_final=True),
        retain=True,
    ),
    "verdict for another device": _on(
        lambda t, name: t.control(name),
        lambda p: UploadResult(round=p.round(), id=p.rng.bytes(16), accepted=True),
    ),
    "chunk for another device": _on(
        lambda t, name: t.data(name), lambda p: encode_chunk(p.rng.bytes(16), 0, bytes(1024))
    ),
    "hello of another device": _on(lambda t, name: t.up(name), lambda p: hello(p.boot())),
    "offer of another device": _on(lambda t, name: t.up(name), _offer),
    "context of another device": _on(
        lambda t, name: t.telemetry(name), lambda p: not_ready(1 << 40, p.boot())
    ),
    "goodbye of another device": _on(
        lambda t, name: t.status(name), lambda p: Status(state="off", boot=p.boot()), retain=True
    ),
    "update of another device": _on(
        lambda t, name: t.upload(name), lambda p: encode_chunk(p.rng.bytes(16), 0, bytes(1024))
    ),
    "intent of two million chunks": _intent,
    "chunk of a model": _on(
        lambda t, _: t.chunk("ff" * 16, 0), lambda p: p.rng.bytes(1024), retain=True
    ),
    "request of a viewer": _on(lambda t, _: t.watch("vera"), lambda p: p.rng.bytes(16)),
    "rows for a viewer": _on(lambda t, _: t.rows("vera"), lambda p: p.rng.bytes(16)),
    "measurement of the limit": _on(lambda t, _: t.limit("ff"), lambda p: p.rng.bytes(16)),
    "other tenant": _on(lambda _, name: Topics("other").up(name), _offer),
    "topic of no run": _on(lambda _, name: f"other/{name}", lambda p: p.rng.bytes(16)),
}
"""The broker drops them."""

SUBSCRIPTIONS: Mapping[str, Callable[[Topics, str], str]] = {
    "reads everything": lambda t, _: "#",
    "reads the messages to another device": lambda t, name: t.control(name),
    "reads the shard of another device": lambda t, name: t.data(name),
    "reads all updates": lambda t, _: t.upload("+"),
    "reads all contexts": lambda t, _: t.telemetry("+"),
    "reads commands": lambda t, _: t.command("+"),
}
"""The broker sends nothing on them."""
