"""Starts the processes that shape links, and says where each device finds the broker."""

import math
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from testbed.backends.errors import BackendError
from testbed.backends.helper import ANSWER_TIMEOUT_S, Ended, OnEnd, end_helper, open_helper
from testbed.backends.shape import ProxySpec, Shape

DEVICES_PER_PROCESS = 50
"""A proxy process costs about 1 % of a core per Mbit/s that passes."""

MAX_LINE_BYTES = 1 << 16
"""Of the one answer: 50 names with their ports take 2 kB."""


class _ProxyProcess:
    def __init__(self, name: str, spec: ProxySpec, log: Path, on_end: OnEnd) -> None:
        self._name, self._spec, self._log, self._on_end = name, spec, log, on_end
        self._process: Process | None = None
        self._is_closing = False
        self.ports: dict[str, int] = {}

    async def open(self) -> None:
        try:
            process = await open_helper("testbed.backends.proxy", log=self._log)
            self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            with anyio.fail_after(ANSWER_TIMEOUT_S):
                await process.stdin.send(msgspec.json.encode(self._spec) + b"\n")
                answer = await BufferedByteReceiveStream(process.stdout).receive_until(
                    b"\n", MAX_LINE_BYTES
                )
        except (
            OSError,
            TimeoutError,
            anyio.BrokenResourceError,
            anyio.EndOfStream,
            anyio.IncompleteRead,
        ) as exc:
            raise BackendError(
                f"{self._name}: cannot be started, {exc!r}; see {self._log}"
            ) from exc
        self.ports = msgspec.json.decode(answer, type=dict[str, int])

    async def watch(self) -> None:
        assert self._process is not None
        status = await self._process.wait()
        self._on_end(
            Ended(name=self._name, status=status, was_asked=self._is_closing, is_device=False)
        )

    async def close(self) -> None:
        self._is_closing = True
        if self._process is not None:
            await end_helper(self._process, signal.SIGKILL)


@asynccontextmanager
async def shaped_ports(
    host: str, port: int, shapes: Mapping[str, Shape], log: Path, on_end: OnEnd
) -> AsyncIterator[dict[str, int]]:
    """Shape the links of devices to a broker; yield the port for each on loopback.

    Args:
        host: Of the broker.
        port: Of the broker.
        shapes: The link of each device; may be empty.
        log: Receives what the processes have to say.
        on_end: Called for every process that ends.

    Raises:
        BackendError: A process does not come up.
    """
    names = iter(shapes)
    processes = [
        _ProxyProcess(
            f"proxy-{index}",
            ProxySpec(
                host=host,
                port=port,
                devices={name: shapes[name] for name in islice(names, DEVICES_PER_PROCESS)},
            ),
            log,
            on_end,
        )
        for index in range(math.ceil(len(shapes) / DEVICES_PER_PROCESS))
    ]
    async with anyio.create_task_group() as tasks:
        try:
            for process in processes:
                await process.open()
                tasks.start_soon(process.watch, name="backend.proxy")
            yield {name: port for process in processes for name, port in process.ports.items()}
        finally:
            for process in processes:
                await process.close()
