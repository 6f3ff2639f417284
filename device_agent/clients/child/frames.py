"""Frames between a program of Fairbed and a process with code of the user.

    length of the header, u32 little-endian | header, JSON object | payload

The header has `parts`, a list of `[name, size]`: the payload is these parts in order. This file
imports the standard library alone, so that a program of another interpreter can load it.

To the client of a device (what `do` is):

    open      device, number, count, folder (own data, or empty), options, is_list, run,
              weighted_by, examples (paths of .npy files by name: x, y, x_test, y_test),
              arrays ([name, dtype, shape] each)                  parts: state
    fit       round, seed, deadline_s, hyperparameters            parts: vector, raw, config
    evaluate  round, seed, deadline_s, split                      parts: vector, raw, config
    initial   options, seed: without `open` before it
    stop      is not answered: the work in progress should end

From it, any number of `progress`, then one of the others (what `is` is):

    progress  share (0 to 1)
    opened    has_evaluate, n (examples of the device, or null)
    done      n, metrics, warnings (lines), decode_s, work_s, encode_s, cpu_s, of evaluate also loss
                                                        parts: vector, raw, records, state
    initial   arrays, is_list, has_evaluate             parts: vector, raw
    failed    error (one line), trace (the last lines)
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any

Buffer = bytes | bytearray | memoryview
Header = dict[str, Any]
Parts = dict[str, memoryview]

MAX_HEADER_BYTES = 1 << 22
MAX_PARTS = 16

BUFFER_BYTES = 1 << 22
"""Wanted size of the send buffers of a client and its agent. What exceeds the buffer crosses in
turns, and in each both processes wait for a core. Linux gives 0.2 MB if nothing is asked for."""

SO_SNDBUFFORCE = 32
"""From asm-generic/socket.h: exceeds the limit of the system, with the right to."""


def enlarge_buffer(link: socket.socket) -> None:
    """Ask for a send buffer of `BUFFER_BYTES`; without rights it has at most the system's limit."""
    try:
        link.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER_BYTES)
    except OSError:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)


class FrameError(Exception):
    """The other side sent no frame, or one that is too large; the message is one line."""


class Closed(Exception):
    """The other side has closed the socket."""


def send_frame(link: socket.socket, header: Mapping[str, Any], parts: Mapping[str, Buffer]) -> None:
    """Send one frame.

    Raises:
        OSError: The other side is gone.
    """
    for part in encode_frame(header, parts):
        link.sendall(part)


def encode_frame(header: Mapping[str, Any], parts: Mapping[str, Buffer]) -> list[Buffer]:
    """Return the buffers of one frame, without a copy of its parts."""
    sizes = [[name, memoryview(part).nbytes] for name, part in parts.items()]
    text = json.dumps({**header, "parts": sizes}, separators=(",", ":")).encode()
    filled = [part for part in parts.values() if memoryview(part).nbytes]
    return [struct.pack("<I", len(text)) + text, *filled]


def receive_frame(link: socket.socket, most: int) -> tuple[Header, Parts]:
    """Wait for one frame; return its header and its parts by name.

    Args:
        link: A connected socket.
        most: Most bytes of the payload.

    Raises:
        Closed: The other side has closed the socket.
        FrameError: The bytes are no frame, or too many.
        OSError: The other side is gone, or `link` has a timeout, which has passed.
    """
    (length,) = struct.unpack("<I", _exactly(link, 4))
    if length > MAX_HEADER_BYTES:
        raise FrameError(f"header: must have at most {MAX_HEADER_BYTES} bytes, got {length}")
    try:
        header = json.loads(bytes(_exactly(link, length)).decode())
    except (ValueError, RecursionError) as exc:
        raise FrameError(f"header: must be JSON, got {exc}") from exc
    if not isinstance(header, dict):
        raise FrameError("header: must be an object")
    sizes = header.pop("parts", [])
    total = size_of(sizes, most)
    return header, parts_of(sizes, memoryview(_exactly(link, total)))


def size_of(sizes: Any, most: int) -> int:
    """Return the bytes of a payload by the field `parts` of its header.

    Raises:
        FrameError: The field is malformed, or names too many bytes.
    """
    if not isinstance(sizes, list) or len(sizes) > MAX_PARTS:
        raise FrameError(f"parts: must be a list of at most {MAX_PARTS}")
    total = 0
    for entry in sizes:
        is_entry = isinstance(entry, list) and len(entry) == 2
        if not is_entry or not isinstance(entry[0], str) or type(entry[1]) is not int:
            raise FrameError("parts: each must have a name and a size")
        total += entry[1]
        if entry[1] < 0 or total > most:
            raise FrameError(f"payload: must have at most {most} bytes, got {entry[1]} more")
    return total


def parts_of(sizes: list[Any], payload: memoryview) -> Parts:
    """Return the parts of a payload by name, after `size_of`."""
    parts, at = dict[str, memoryview](), 0
    for name, size in sizes:
        parts[name] = payload[at : at + size]
        at += size
    return parts


def _exactly(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = link.recv_into(view[got:], min(size - got, 1 << 20))
        if not count:
            raise Closed("the other side has closed the socket")
        got += count
    return data
