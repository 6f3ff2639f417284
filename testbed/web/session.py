"""One control room for one page: a child in Textual's web mode, and what passes between both.

Textual's web driver writes `__GANGLION__` and a line feed, then packets: one byte of type, four of
length (big endian), the payload. `D` carries bytes of a terminal, `M` JSON, `P` a piece of a file.
It reads packets `D` and `M`. The page is `textual.js` of textual-serve, which sends JSON arrays.
"""

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import TypeAlias, cast

import anyio
import anyio.abc
import msgspec
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct
from textual._binary_encode import DecodeError, load  # of packets `P`; Textual is pinned

from fairbed.testbed.host.guard import guarded

MAX_PRELUDE_BYTES = 1 << 16
"""Output of the child before its first packet."""

MAX_PACKET_BYTES = 1 << 24
"""The largest payload that a child may write; a full screen of 500 x 500 cells is below it."""

STDERR_KEPT_BYTES = 1 << 12
"""End of the child's error output, from which the reason of its end comes."""

FILE_CHUNK_BYTES, MAX_FILE_BYTES, MAX_FILES = 1 << 16, 1 << 24, 4
"""Of files that a control room delivers: pictures of the screen."""

END_S = 5.0
"""Longest graceful end of a child, seconds; then it is killed."""

MAX_CELLS = 500
"""Columns and lines of the largest screen."""


class Stdin(Struct, frozen=True, array_like=True, tag="stdin"):
    """Keys, and what the terminal reports of the mouse."""

    data: str


class Cells(Struct, frozen=True):
    """Size of a screen in columns and lines."""

    width: int
    height: int


class Resize(Struct, frozen=True, array_like=True, tag="resize"):
    """New size of the terminal in the page."""

    size: Cells


class Ping(Struct, frozen=True, array_like=True, tag="ping"):
    """Request for an answer with the same text."""

    text: str


class Focus(Struct, frozen=True, array_like=True, tag="focus"):
    """The page has the keyboard."""


class Blur(Struct, frozen=True, array_like=True, tag="blur"):
    """The page does not have the keyboard any more."""


Chunk: TypeAlias = bytes | str
FromPage: TypeAlias = Stdin | Resize | Ping | Focus | Blur


class DeliveredFile(Struct):
    """A file that the control room gives to its page."""

    name: str
    content: bytearray
    is_complete: bool = False


class Session:
    """A control room in a child process; `run` starts it and returns after its end.

    Args:
        send_bytes: Sends bytes of a terminal to the page; waits for a slow page.
        send_text: Sends a JSON text to the page.
    """

    def __init__(
        self,
        send_bytes: Callable[[bytes], Awaitable[None]],
        send_text: Callable[[str], Awaitable[None]],
    ) -> None:
        self._send_bytes, self._send_text = send_bytes, send_text
        self._process: anyio.abc.Process | None = None
        self._stderr, self._has_read_stderr = b"", anyio.Event()
        self.files: dict[str, DeliveredFile] = {}

    async def run(self, argv: Sequence[str], size: Cells) -> str:
        """Start the child and pass its output on until it ends; end it on cancellation.

        Returns:
            The last line of its error output if it failed, otherwise nothing.
        """
        process = await anyio.open_process(
            guarded(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(os.environ, _bounded(size)),
            start_new_session=True,
        )
        self._process = process
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_stderr, process, name="web.stderr")
                problem = await self._read_packets(process)
                if not problem:
                    await process.wait()
                    problem = await self._last_error(process)
                tasks.cancel_scope.cancel()
        finally:
            self._process = None
            with anyio.CancelScope(shield=True):
                await _end(process)
        return problem

    async def handle(self, message: FromPage) -> None:
        """Pass a message of the page on to the child; it is lost if there is none yet."""
        match message:
            case Stdin(data):
                await self._write(b"D", data.encode(errors="replace"))
            case Resize(size):
                cells = msgspec.structs.asdict(_bounded(size))
                await self._write(b"M", msgspec.json.encode({"type": "resize", **cells}))
            case Focus():
                await self._write(b"M", b'{"type":"focus"}')
            case Blur():
                await self._write(b"M", b'{"type":"blur"}')
            case Ping(text):
                await self._send_text(msgspec.json.encode(["pong", text]).decode())

    async def _write(self, kind: bytes, payload: bytes) -> None:
        stdin = None if self._process is None else self._process.stdin
        if stdin is not None:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stdin.send(kind + len(payload).to_bytes(4, "big") + payload)

    async def _read_packets(self, process: anyio.abc.Process) -> str:
        """Pass the child's packets on until its output or its page ends; return a broken rule."""
        assert process.stdout is not None
        stdout = BufferedByteReceiveStream(process.stdout)
        with suppress(anyio.IncompleteRead, anyio.DelimiterNotFound, ConnectionError):
            await stdout.receive_until(b"__GANGLION__\n", MAX_PRELUDE_BYTES)
            while True:
                head = await stdout.receive_exactly(5)
                length = int.from_bytes(head[1:], "big")
                if length > MAX_PACKET_BYTES:
                    return f"a packet of the control room must be at most 16 MiB, got {length:,} B"
                payload = await stdout.receive_exactly(length) if length else b""
                try:
                    await self._handle_packet(head[:1], payload)
                except (DecodeError, msgspec.DecodeError) as exc:
                    return f"a packet of the control room must be readable, got: {exc}"
        return ""

    async def _handle_packet(self, kind: bytes, payload: bytes) -> None:
        """Pass a packet on, or use it.

        Raises:
            textual._binary_encode.DecodeError: It is no piece of a file.
            msgspec.DecodeError: It is no JSON.
        """
        if kind == b"D":
            await self._send_bytes(payload)
        elif kind == b"M":
            await self._handle_meta(msgspec.json.decode(payload))
        elif kind == b"P":
            await self._handle_chunk(cast("tuple[str, str, Chunk]", load(payload)))

    async def _handle_meta(self, meta: dict[str, str]) -> None:
        """Begin to receive a file; a control room opens no address, and reports its end itself."""
        if meta["type"] == "deliver_file_start" and len(self.files) < MAX_FILES:
            name = PurePath(meta["path"]).name
            self.files[meta["key"]] = DeliveredFile(name=name, content=bytearray())
            await self._request_chunk(meta["key"])

    async def _handle_chunk(self, packet: "tuple[str, str, Chunk]") -> None:
        _, key, chunk = packet
        file = self.files.get(key)
        if file is None:
            return
        file.content += chunk.encode() if isinstance(chunk, str) else chunk
        if len(file.content) > MAX_FILE_BYTES:
            del self.files[key]
        elif chunk:
            await self._request_chunk(key)
        else:
            file.is_complete = True
            await self._send_text(msgspec.json.encode(["deliver_file_start", key]).decode())

    async def _request_chunk(self, key: str) -> None:
        request = {"type": "deliver_chunk_request", "key": key, "size": FILE_CHUNK_BYTES}
        await self._write(b"M", msgspec.json.encode(request))

    async def _read_stderr(self, process: anyio.abc.Process) -> None:
        assert process.stderr is not None
        async for data in process.stderr:
            self._stderr = (self._stderr + data)[-STDERR_KEPT_BYTES:]
        self._has_read_stderr.set()

    async def _last_error(self, process: anyio.abc.Process) -> str:
        """Return why an ended child failed; nothing if it did not."""
        if process.returncode == 0:
            return ""
        with anyio.move_on_after(END_S):
            await self._has_read_stderr.wait()
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the control room ended with exit code {process.returncode}"


async def _end(process: anyio.abc.Process) -> None:
    """End a child and what it started: gracefully, then not."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(END_S):
            await process.wait()
    with suppress(ProcessLookupError, PermissionError):  # macOS refuses an ended group
        os.killpg(process.pid, signal.SIGKILL)
    await process.aclose()


def _bounded(size: Cells) -> Cells:
    return Cells(*(min(max(cells, 1), MAX_CELLS) for cells in (size.width, size.height)))


WEB_DRIVER = "fairbed.testbed.web.driver:WholePacketDriver"


def _environment(environ: Mapping[str, str], size: Cells) -> dict[str, str]:
    """Return the environment of a child: Textual's web mode, whatever the terminal here is."""
    kept = {name: value for name, value in environ.items() if not name.startswith("TEXTUAL")}
    return {
        **kept,
        "TEXTUAL_DRIVER": WEB_DRIVER,
        "TEXTUAL_COLOR_SYSTEM": "truecolor",
        "TERM": "xterm-256color",
        "TERM_PROGRAM": "textual",
        "COLUMNS": str(size.width),
        "ROWS": str(size.height),
    }
