"""Mutations of an input: a few random edits, drawn from a seeded generator."""

import random
from collections.abc import Callable, Sequence

NUMBERS = (0, 1, 2, 7, 8, 16, 31, 32, 64, 100, 127, 128, 255, 256, 1024, 4096, 65_535, 65_536,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)  # fmt: skip
"""Values at which integers and lengths overflow."""

WORDS = (
    b"\xc0", b"\xc2", b"\x90", b"\xdf\xff\xff\xff\xff", b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", b"\xca\x7f\x7f\xff\xff", b"\xd9\x20", b"\xff" * 8,
    b"\x80\x00\x00\x00", b"nan", b"inf", b"-1", b"1e999", b"true", b"[[a]]", b"{", b"}", b"[", b"]",
    b"=", b'"', b"\n", b",", b".", b"\x00", b"\xc3\x28", b"..", b"/", b"#", b"+", b"%s",
)  # fmt: skip
"""Pieces that mean something in msgpack, TOML, tables or topics."""

MAX_EDITS = 4

Edit = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def mutated(corpus: Sequence[bytes], rng: random.Random, max_bytes: int) -> bytes:
    """Return one input of `corpus` with a few edits, at most `max_bytes` long."""
    data = bytearray(corpus[int(rng.random() * len(corpus))])
    for _ in range(1 + int(rng.random() * MAX_EDITS)):
        EDITS[int(rng.random() * len(EDITS))](data, rng, corpus)
    return bytes(data[:max_bytes])


def _place(data: bytearray, rng: random.Random) -> int:
    return int(rng.random() * len(data))


def _flip(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    if data:
        data[_place(data, rng)] ^= 1 << int(rng.random() * 8)


def _set(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    if data:
        data[_place(data, rng)] = int(rng.random() * 256)


def _number(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    """Overwrite an integer of 1 to 8 bytes, in either order."""
    size = 1 << int(rng.random() * 4)
    value = NUMBERS[int(rng.random() * len(NUMBERS))] + int(rng.random() * 3) - 1
    raw = (value & (1 << 8 * size) - 1).to_bytes(size, "big" if rng.random() < 0.5 else "little")
    at = _place(data, rng)
    data[at : at + size] = raw


def _insert(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    at = _place(data, rng)
    data[at:at] = WORDS[int(rng.random() * len(WORDS))]


def _overwrite(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    word, at = WORDS[int(rng.random() * len(WORDS))], _place(data, rng)
    data[at : at + len(word)] = word


def _delete(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    at = _place(data, rng)
    del data[at : at + 1 + int(rng.random() ** 3 * 64)]


def _repeat(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    at, size = _place(data, rng), 1 + int(rng.random() ** 3 * 64)
    data[at:at] = data[at : at + size] * (1 + int(rng.random() ** 3 * 8))


def _cut(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    del data[_place(data, rng) :]


def _splice(data: bytearray, rng: random.Random, corpus: Sequence[bytes]) -> None:
    """Replace a part by one of another input."""
    other = corpus[int(rng.random() * len(corpus))]
    begin, size = int(rng.random() * len(other)), 1 + int(rng.random() ** 2 * 128)
    at = _place(data, rng)
    data[at : at + size] = other[begin : begin + size]


EDITS: tuple[Edit, ...] = (
    _flip, _flip, _set, _set, _number, _number, _insert, _overwrite, _delete, _repeat, _cut, _splice
)  # fmt: skip
