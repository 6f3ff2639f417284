"""Every fault in received bytes is one `DecodeError` with a message of one line."""

import json
import re
from copy import deepcopy
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.wire.codec import (
    MAX_MESSAGE_BYTES,
    decode,
    decode_answer,
    decode_command,
    decode_from_device,
    decode_intent,
    decode_to_device,
    encode,
)
from fairbed.wire.errors import DecodeError, EncodeError, VersionError
from fairbed.wire.messages import (
    MAX_TEXT,
    PROTOCOL_VERSION,
    AnyMessage,
    Coding,
    Context,
    Failed,
    Hyperparameters,
    LocalTraining,
    Manifest,
    OperatorCommand,
    PersonalScore,
    Phases,
    Ping,
    Privacy,
    Refuse,
    RowsPart,
    Train,
    UploadDone,
)
from tests.wire.messages import MESSAGES, MODEL, PLAIN_SGD, UPDATE_ID, Path, leaves, objects

VERSION = bytes([PROTOCOL_VERSION])
NAN, INF = float("nan"), float("inf")
DEEP = b"\x91" * 100_000 + b"\xc0"
"""An array in an array in an array ..."""


def _packed(**fields: Any) -> bytes:
    return VERSION + msgspec.msgpack.encode(fields)


def _ping(**fields: Any) -> bytes:
    return _packed(m="ping", **fields)


def _context(**fields: Any) -> bytes:
    return _packed(m="context", **{"boot": 1, "seq": 1, "mu_cores": 1.0, **fields})


MALFORMED = {
    "empty": (b"", "must hold 1 to 1000000 bytes, got 0"),
    "too large": (bytes(1_000_001), "must hold 1 to 1000000 bytes, got 1000001"),
    "version only": (VERSION, "Input data was truncated"),
    "not an object": (VERSION + b"\x01", "Expected `object`, got `int`"),
    "a reserved byte": (
        VERSION + b"\xc1",
        "MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)",
    ),
    "no tag": (_packed(seq=1), "Object missing required field `m`"),
    "unknown tag": (_packed(m="hallo"), "Invalid value 'hallo' - at `$.m`"),
    "tag of another type": (_packed(m=1), "Expected `str`, got `int` - at `$.m`"),
    "missing field": (_ping(), "Object missing required field `seq`"),
    "wrong type": (_ping(seq="1"), "Expected `int`, got `str` - at `$.seq`"),
    "a float for a count": (_ping(seq=1.5), "Expected `int`, got `float` - at `$.seq`"),
    "negative count": (_ping(seq=-1), "Expected `int` >= 0 - at `$.seq`"),
    "count too large": (_ping(seq=1 << 41), "Expected `int` <= 1099511627776 - at `$.seq`"),
    "unknown field": (_ping(seq=1, color="red"), "Object contains unknown field `color`"),
    "control characters": (
        _ping(seq=1, **{"a\n\x1b[31m\u202eb": 1}),
        "Object contains unknown field `a ?[31m?b`",
    ),
    "a flood": (_ping(seq=1, **{"x" * 10_000: 1}), f"Object contains unknown field `{'x' * 169}"),
    "unknown enum value": (
        _packed(m="status", state="asleep", boot=1),
        "Invalid enum value 'asleep' - at `$.state`",
    ),
    "invalid utf-8 in a value": (
        VERSION + b"\x82\xa1m\xa6refuse\xa6reason\xa2\xff\xfe",
        "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "invalid utf-8 in a key": (
        VERSION + b"\x82\xa1m\xa4ping\xa3s\xffq\x01",
        "'utf-8' codec can't decode byte 0xff in position 1: invalid start byte",
    ),
    "nested without end, tag first": (
        VERSION + b"\x82\xa1m\xa4ping\xa3seq" + DEEP,
        "Expected `int`, got `array` - at `$.seq`",
    ),
    "text too long": (
        _packed(m="refuse", reason="x" * 501),
        "Expected `str` of length <= 500 - at `$.reason`",
    ),
    "claims more text than there is": (
        VERSION + b"\x82\xa1m\xa6refuse\xa6reason\xdb\xff\xff\xff\xffab",
        "Input data was truncated",
    ),
    "bytes too long": (
        _packed(m="link-probe", seq=1, payload=bytes(65_537)),
        "Expected `bytes` of length <= 65536 - at `$.payload`",
    ),
    "id too short": (
        _packed(m="upload-ack", id=b"short", received=b""),
        "Expected `bytes` of length >= 16 - at `$.id`",
    ),
    "list too long": (
        _packed(m="chunk-request", id=UPDATE_ID, chunks=[0] * 65),
        "Expected `array` of length <= 64 - at `$.chunks`",
    ),
    "claims more items than there are": (
        VERSION
        + b"\x83\xa1m\xadchunk-request\xa2id\xc4\x10"
        + UPDATE_ID
        + b"\xa6chunks\xdd\xff\xff\xff\xff",
        "Expected `array` of length <= 64 - at `$.chunks`",
    ),
    "item out of bounds": (
        _packed(m="chunk-request", id=UPDATE_ID, chunks=[0, -1]),
        "Expected `int` >= 0 - at `$.chunks[1]`",
    ),
    "a negative duration": (
        _packed(m="evaluate-reply", round=1, loss=1.0, n=1, was_cold=False, download_s=-0.5),
        "Expected `float` >= 0.0 - at `$.download_s`",
    ),
    "no cores": (_context(mu_cores=0.0), "Expected `float` > 0.0 - at `$.mu_cores`"),
    "NaN under a bound": (_context(mu_cores=NAN), "Expected `float` > 0.0 - at `$.mu_cores`"),
    "NaN": (
        _context(temperature_celsius=NAN),
        "Expected `float` >= -273.15 - at `$.temperature_celsius`",
    ),
    "infinity": (
        _context(temperature_celsius=-INF),
        "Expected `float` >= -273.15 - at `$.temperature_celsius`",
    ),
    "device for a pause": (
        _packed(m="command", id=UPDATE_ID, action="pause", device="pi-7"),
        "device must not be given for action 'pause', got 'pi-7'",
    ),
    "no device to exclude": (
        _packed(m="command", id=UPDATE_ID, action="exclude"),
        "device must be given for action 'exclude', got None",
    ),
    "bad device name": (
        _packed(m="command", id=UPDATE_ID, action="exclude", device="pi-7\n"),
        "Expected `str` matching regex '\\\\A[a-z0-9-]{1,32}\\\\Z' - at `$.device`",
    ),
}


@pytest.mark.parametrize(("payload", "line"), MALFORMED.values(), ids=MALFORMED.keys())
def test_each_fault_has_its_one_line_message(payload: bytes, line: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(payload)
    assert str(caught.value) == f"message: {line}"


def test_a_message_that_is_nested_to_its_last_byte_is_refused() -> None:
    """Python to 3.13 counts the levels; Python 3.14 measures the stack."""
    deep = b"\x91" * (MAX_MESSAGE_BYTES - 10) + b"\xc0"
    with pytest.raises(DecodeError) as caught:
        decode(VERSION + b"\x82\xa1z" + deep)
    rule = r"maximum recursion depth exceeded|Stack overflow \(used \d+ kB\)"
    assert re.fullmatch(f"message: ({rule}) while deserializing an object", str(caught.value))


def test_a_version_error_names_the_side_to_update() -> None:
    newer = bytes([PROTOCOL_VERSION + 1]) + encode(Ping(seq=1))[1:]
    with pytest.raises(VersionError) as caught:
        decode(newer)
    assert str(caught.value) == (
        f"message: must be of protocol {PROTOCOL_VERSION}, got {PROTOCOL_VERSION + 1}; "
        "update fairbed on this side"
    )
    with pytest.raises(VersionError, match=r"got 0; update fairbed on the sender$"):
        decode(b"\x00" + newer[1:])


def test_text_that_is_not_a_message_is_refused() -> None:
    with pytest.raises(VersionError, match=r"got 123; update fairbed on this side$"):
        decode(json.dumps({"m": "ping", "seq": 1}).encode())


def test_each_side_decodes_only_messages_of_the_other() -> None:
    from_device, to_device = encode(MESSAGES["offer"]), encode(MESSAGES["train"])
    intent, command = encode(MESSAGES["intent"]), encode(MESSAGES["command"])
    for understands, others in (
        (decode_from_device, (to_device, intent, command)),
        (decode_to_device, (from_device, intent, command)),
        (decode_intent, (from_device, to_device, command)),
        (decode_command, (from_device, to_device, intent)),
    ):
        for payload in others:
            with pytest.raises(DecodeError, match=r"^message: Invalid value '.*' - at `\$\.m`$"):
                understands(payload)


EACH = pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())


def _with(fields: Any, path: Path, value: Any) -> Any:
    changed = deepcopy(fields)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def _fields(message: AnyMessage) -> Any:
    return msgspec.msgpack.decode(encode(message)[1:])


def test_energy_that_no_device_can_take_is_refused() -> None:
    """Training takes 1.5 s."""
    sent = _with(_fields(MESSAGES["offer-energy"]), ("phases", "energy", "train_j"), 15_001.0)
    rule = r"energy\.train_j must be at most 10000 W x train_s = 15000, got 15001"
    with pytest.raises(DecodeError, match=rule):
        decode_from_device(VERSION + msgspec.msgpack.encode(sent))


@EACH
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_refuses_what_is_not_finite_in_every_field(message: AnyMessage, value: float) -> None:
    fields = _fields(message)
    for path in leaves(fields):
        with pytest.raises(DecodeError):
            decode(VERSION + msgspec.msgpack.encode(_with(fields, path, value)))


@EACH
def test_refuses_an_unknown_field_at_every_depth(message: AnyMessage) -> None:
    fields = _fields(message)
    for path in objects(fields):
        changed = _with(fields, (*path, "extra"), 1)
        with pytest.raises(DecodeError, match=r"^message: Object contains unknown field `extra`"):
            decode(VERSION + msgspec.msgpack.encode(changed))


@EACH
def test_refuses_endless_nesting_in_every_field(message: AnyMessage) -> None:
    fields = _fields(message)
    for path in leaves(fields):
        payload = VERSION + msgspec.msgpack.encode(_with(fields, path, msgspec.Raw(DEEP)))
        with pytest.raises(DecodeError):
            decode(payload)


DECODERS = (
    decode,
    decode_answer,
    decode_command,
    decode_from_device,
    decode_intent,
    decode_to_device,
)


def _is_one_line(text: str) -> bool:
    return text.isprintable() and len(text) <= 250


def _survives(payload: bytes) -> None:
    """Check for a message that encodes to an equal one, or a `DecodeError` of one line."""
    for decoder in DECODERS:
        reason = ""
        try:
            message = decoder(payload)
        except DecodeError as exc:
            reason = str(exc)
        else:
            assert decode(encode(message)) == message
        assert _is_one_line(reason)


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_decode_error(payload: bytes) -> None:
    _survives(payload)
    _survives(VERSION + payload)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@given(st.data())
def test_a_field_of_any_content_raises_nothing_but_decode_error(data: st.DataObject) -> None:
    fields = _fields(data.draw(st.sampled_from(list(MESSAGES.values()))))
    path = data.draw(st.sampled_from(list(leaves(fields)) or [("extra",)]))
    _survives(VERSION + msgspec.msgpack.encode(_with(fields, path, data.draw(ANYTHING))))


@given(st.data())
def test_flipped_bytes_raise_nothing_but_decode_error(data: st.DataObject) -> None:
    payload = bytearray(encode(data.draw(st.sampled_from(list(MESSAGES.values())))))
    flips = st.tuples(st.integers(0, len(payload) - 1), st.integers(0, 255))
    for at, value in data.draw(st.lists(flips, min_size=1, max_size=4)):
        payload[at] = value
    _survives(bytes(payload))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_message_with_a_value_that_is_not_finite_cannot_be_built(value: float) -> None:
    with pytest.raises(ValueError, match=r"^mu_cores must be a finite number, got "):
        Context(boot=1, seq=1, mu_cores=value)
    with pytest.raises(ValueError, match=r"^train_s must be a finite number, got "):
        Phases(download_s=0, load_s=0, evaluate_s=0, train_s=value, train_cpu_s=0, encode_s=0)
    with pytest.raises(ValueError, match=r"^measured.upload_j must be a finite number, got "):
        UploadDone(
            round=1, id=UPDATE_ID, sha256=bytes(32), model=bytes(32), measured={"upload_j": value}
        )


def test_a_download_manifest_with_a_missing_or_wrong_hash_cannot_be_built() -> None:
    with pytest.raises(ValueError, match=r"^sha256 must be given for all kinds but update"):
        Manifest(id=UPDATE_ID, kind="model", size_bytes=1, chunk_bytes=1024)
    with pytest.raises(ValueError, match=r"^sha256 must be given for all kinds but update"):
        Manifest(id=UPDATE_ID, kind="update", size_bytes=1, chunk_bytes=1024, sha256=bytes(32))
    with pytest.raises(
        ValueError, match=r"^id must be the first 16 bytes of sha256 for a download"
    ):
        Manifest(id=UPDATE_ID, kind="model", size_bytes=1, chunk_bytes=1024, sha256=bytes(32))


def test_a_part_of_rows_beyond_the_last_one_cannot_be_built() -> None:
    with pytest.raises(ValueError, match=r"^part must be below parts, got 2 of 2$"):
        RowsPart(id=UPDATE_ID, part=2, parts=2)


def test_truncates_long_text_when_a_message_is_built() -> None:
    failed = Failed(round=1, phase="train", reason="x" * 10_000)
    assert failed.reason == "x" * (MAX_TEXT - 1) + "…"
    assert decode(encode(failed)) == failed
    assert Refuse(reason="x" * MAX_TEXT).reason == "x" * MAX_TEXT


def test_makes_every_text_one_printable_line() -> None:
    reason = "\x1b[2Jcleared\nround 1\tdone \udcff"
    assert Refuse(reason=reason).reason == "?[2Jcleared round 1 done \\udcff"


def test_names_the_value_that_cannot_be_encoded() -> None:
    with pytest.raises(EncodeError, match=r"^Ping: must be encodable, got "):
        encode(Ping(seq=1 << 70))


def test_refuses_to_encode_a_message_above_the_limit_of_brokers() -> None:
    with pytest.raises(EncodeError, match=r"^LinkProbe: a message must stay below 1000000 bytes, "):
        encode(type(MESSAGES["link-probe"])(seq=1, payload=bytes(1_000_000)))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "include"}, "device must be given for action 'include', got None"),
        ({"action": "stop", "device": "pi-7"}, "device must not be given for action 'stop', got"),
        ({"action": "set", "name": "beta"}, "value must be given for action 'set', got None"),
        ({"action": "note"}, "text must be given for action 'note', got ''"),
        ({"action": "kick", "device": "pi-7", "text": "x"}, "text must not be given for action"),
    ],
)
def test_a_command_has_the_fields_of_its_action_only(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        OperatorCommand(id=UPDATE_ID, **fields)


def test_a_value_of_zero_is_a_value() -> None:
    command = OperatorCommand(id=UPDATE_ID, action="set", name="V", value=0.0)
    assert command.line == "set V 0"


def test_hyperparameters_of_a_round_are_bounded() -> None:
    train = MESSAGES["train-full"]
    assert isinstance(train, Train)
    wild = Hyperparameters(epochs=1, batch_size=20, learning_rate=0.1, momentum=1.0)
    with pytest.raises(DecodeError) as caught:
        decode(encode(msgspec.structs.replace(train, hyperparameters=wild)))
    assert str(caught.value) == (
        "message: Expected `float` < 1.0 - at `$.hyperparameters.momentum`"
    )


@pytest.mark.parametrize(("up", "top_k"), [("top-k", None), ("int8", 5)])
def test_a_number_of_values_belongs_to_top_k_alone(
    up: Literal["top-k", "int8"], top_k: int | None
) -> None:
    with pytest.raises(ValueError, match=f"top_k must be given .*, got {top_k}"):
        Coding(up=up, top_k=top_k)


def test_a_score_has_no_more_correct_answers_than_examples() -> None:
    with pytest.raises(ValueError, match="correct must be at most n, got 5 of 4"):
        PersonalScore(round=1, n=4, correct=5)
    with pytest.raises(ValueError, match="correct must be at most n, got 41 of 40"):
        msgspec.structs.replace(MESSAGES["evaluate-reply-test"], correct=41)


def test_options_of_a_local_rule_are_finite() -> None:
    with pytest.raises(ValueError, match=r"options\.rate must be a finite number, got inf"):
        LocalTraining(rule="propfair", options=(("rate", float("inf")),), run="run-a")


def test_a_request_cannot_ask_for_a_loss_beside_noise() -> None:
    fields: dict[str, Any] = {
        "round": 1,
        "model": MODEL,
        "hyperparameters": PLAIN_SGD,
        "seed": 1,
        "deadline_s": 1.0,
        "privacy": Privacy(clip=1.0, noise_multiplier=1.0),
    }
    with pytest.raises(ValueError, match="needs_loss must be false with privacy"):
        Train(needs_loss=True, **fields)
    with pytest.raises(ValueError, match=r"coding.returned must be 0 with privacy.*got 1"):
        Train(needs_loss=False, coding=Coding(returned=1), **fields)
