"""The packets of a control room in a page stay whole, whichever thread writes them."""

import os
import sys
import threading

import pytest
from textual._binary_encode import load
from textual.app import App

from fairbed.testbed.web.driver import WholePacketDriver

PACKETS = 200
SCREEN = "x" * 200_000
CHUNK = b"y" * 65_536
"""Both are larger than a pipe: a write of one ends when the reader has taken most of it."""


def read_exactly(descriptor: int, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = os.read(descriptor, length - len(data))
        assert part, "the writers ended within a packet"
        data += part
    return data


@pytest.mark.anyio
async def test_packets_of_two_threads_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, keyboard = os.pipe()
    with os.fdopen(keys) as stdin:  # that of a test cannot be waited for
        monkeypatch.setattr(sys, "__stdin__", stdin)
        driver = WholePacketDriver(App[None]())
        driver._input_reader.close()
    os.close(keyboard)
    source, driver.fileno = os.pipe()

    def send_screens() -> None:
        for _ in range(PACKETS):
            driver.write(SCREEN)

    def send_chunks() -> None:
        for _ in range(PACKETS):
            driver.write_binary_encoded(("deliver_chunk", "key", CHUNK))

    writers = [threading.Thread(target=send) for send in (send_screens, send_chunks)]
    for writer in writers:
        writer.start()
    kinds = []
    for _ in range(2 * PACKETS):
        head = read_exactly(source, 5)
        payload = read_exactly(source, int.from_bytes(head[1:], "big"))
        kinds.append(head[:1])
        if head[:1] == b"D":
            assert payload == SCREEN.encode()
        else:
            assert head[:1] == b"P"
            assert load(payload) == ("deliver_chunk", "key", CHUNK)
    for writer in writers:
        writer.join()
    os.close(source)
    os.close(driver.fileno)
    assert sorted(kinds) == [b"D"] * PACKETS + [b"P"] * PACKETS
