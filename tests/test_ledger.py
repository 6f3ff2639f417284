"""What the fault tests take as growth of memory."""

import gc

import anyio
import pytest

from tests.ledger import SAMPLE_S, watch_memory

pytestmark = pytest.mark.anyio

SIZE = 40_000_000


async def test_garbage_that_grows_slowly_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.ledger.SAMPLE_S", 0.0)
    gc.disable()
    try:
        async with watch_memory() as peaks:
            for _ in range(20):
                cycle: list[object] = [bytearray(b"x") * 3_000_000]
                cycle.append(cycle)
                del cycle
                await anyio.sleep(1e-4)
    finally:
        gc.enable()
    peaks.stay_below(30.0)


async def test_memory_that_is_held_counts_and_garbage_does_not() -> None:
    async with watch_memory() as peaks:
        for _ in range(4):
            cycle: list[object] = [bytearray(b"x") * SIZE]
            cycle.append(cycle)
            del cycle
            await anyio.sleep(2 * SAMPLE_S)
    peaks.stay_below(30.0)
    async with watch_memory() as peaks:
        held = bytearray(b"x") * SIZE
        await anyio.sleep(4 * SAMPLE_S)
        assert len(held) == SIZE
    with pytest.raises(AssertionError, match=r"tests \+"):
        peaks.stay_below(30.0)
