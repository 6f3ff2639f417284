"""MQTT messages of an exchange, counted by a mosquitto of the benchmark's own."""

import getpass
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiomqtt
import anyio

from benchmarks._live_run import live_run
from fairbed.testbed.host.broker_process import find_mosquitto
from fairbed.testbed.host.guard import guarded

COUNTERS = {
    "to the broker": "$SYS/broker/publish/messages/received",
    "from the broker": "$SYS/broker/publish/messages/sent",
}

SETTLED_S = 2.5
"""After a run, before its counts are read: mosquitto publishes them once a second."""

START_S = 10.0


def messages_of_exchange(data: Path, agents: int, rounds: tuple[int, int]) -> dict[str, float]:
    """Return messages of an exchange by direction, with contexts and what belongs to the round.

    Two runs, of so many rounds, are counted; their difference has no start and no end.

    Raises:
        SystemExit: There is no mosquitto, or it did not start.
    """
    few, many = (_counts(data, agents, count) for count in rounds)
    exchanges = agents * (rounds[1] - rounds[0])
    return {way: (many[way] - few[way]) / exchanges for way in COUNTERS}


def _counts(data: Path, agents: int, rounds: int) -> dict[str, int]:
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name, _mosquitto(name) as port:
        with live_run(
            Path(name), data, agents=agents, rounds=rounds, max_steps=1, batch_size=8,
            broker="mosquitto", broker_url=f"mqtt://127.0.0.1:{port}",
        ) as run:  # fmt: skip
            for _ in run.rounds():
                pass
        time.sleep(SETTLED_S)
        return anyio.run(_read, port)


@contextmanager
def _mosquitto(folder: str) -> Iterator[int]:
    """Run a mosquitto that counts its messages; give its port."""
    command = find_mosquitto()
    if command is None:
        raise SystemExit(
            "scale: messages are counted by mosquitto, which was not found; install it"
        )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    file = Path(folder) / "mosquitto.conf"
    file.write_text(
        f"user {getpass.getuser()}\nlistener {port} 127.0.0.1\nallow_anonymous true\n"
        "sys_interval 1\nset_tcp_nodelay true\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        guarded([*command, "-c", str(file)]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise SystemExit(f"scale: mosquitto did not start in {START_S:g} s") from None
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


async def _read(port: int) -> dict[str, int]:
    """Return the counters, which the broker keeps as retained messages."""
    found: dict[str, int] = {}
    with anyio.fail_after(START_S):
        async with aiomqtt.Client("127.0.0.1", port) as client:
            for way, topic in COUNTERS.items():
                await client.subscribe(topic)
                message = await anext(client.messages)
                assert isinstance(message.payload, bytes)
                found[way] = int(message.payload)
    return found
