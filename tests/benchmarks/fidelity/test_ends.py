"""Measuring ends over real sockets of this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from benchmarks._fidelity.end_commands import (
    Accept,
    Address,
    Arrivals,
    Burst,
    CloseLoad,
    Compute,
    Connect,
    Delays,
    Done,
    Instant,
    Listen,
    OpenDatagrams,
    OpenLoad,
    Passes,
    ReceiveBlock,
    ReceiveDatagrams,
    ReceiveMessages,
    ReceiveStream,
    RunKernel,
    SendBlock,
    SendDatagrams,
    SendMessages,
    SendStream,
    Steps,
    Work,
)
from benchmarks._fidelity.end_process import EndError, EndPipe, both, open_end
from tests.bounded import run

HERE = "127.0.0.1"


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[tuple[EndPipe, EndPipe]]:
    async with open_end(folder / "a.log") as one, open_end(folder / "b.log") as other:
        place = await other.request(Listen(host=HERE), Address)
        await one.request(Connect(host=place.host, port=place.port), Done)
        await other.request(Accept(), Done)
        yield one, other


def test_a_stream_is_noted_as_it_comes_until_the_receiver_hangs_up(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path) as (one, other):
            drunk, _ = await both(
                other.request(ReceiveStream(lasting_s=0.2), Arrivals),
                one.request(SendStream(limit_s=30.0), Done),
            )
            assert drunk.times == sorted(drunk.times)
            assert drunk.totals == sorted(drunk.totals)
            assert drunk.totals[-1] > 1 << 18

    run(test)


def test_a_block_has_arrived_after_it_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path) as (one, other):
            end, begin = await both(
                other.request(ReceiveBlock(n_bytes=300_000, limit_s=30.0), Instant),
                one.request(SendBlock(n_bytes=300_000), Instant),
            )
            assert end.at > begin.at

    run(test)


@pytest.mark.parametrize("sends", [True, False])
def test_messages_pass_beside_a_load_that_can_be_closed_and_opened_again(
    sends: bool, tmp_path: Path
) -> None:
    async def test() -> None:
        async with open_end(tmp_path / "a.log") as one, open_end(tmp_path / "b.log") as other:
            place = await other.request(Listen(host=HERE), Address)
            await one.request(Connect(host=place.host, port=place.port), Done)
            await other.request(Accept(), Done)
            for _ in range(2):
                towards = (place.host, place.port)
                await one.request(OpenLoad(sends=sends, towards=towards), Done)
                await other.request(OpenLoad(sends=not sends), Done)
                heard, _ = await both(
                    other.request(ReceiveMessages(count=5, limit_s=30.0), Delays),
                    one.request(SendMessages(count=5, gap_s=1e-3), Done),
                )
                assert len(heard.seconds) == 5
                for end in (one, other):
                    await end.request(CloseLoad(), Done)
                    await end.request(CloseLoad(), Done)  # there is none any more

    run(test)


def test_every_message_is_heard_with_its_delay(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path) as (one, other):
            heard, _ = await both(
                other.request(ReceiveMessages(count=50, limit_s=30.0), Delays),
                one.request(SendMessages(count=50, gap_s=1e-4), Done),
            )
            assert len(heard.seconds) == 50
            assert min(heard.seconds) > 0.0

    run(test)


def test_datagrams_are_counted_and_silence_ends_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path) as (one, other):
            place = await other.request(OpenDatagrams(towards=(HERE, 9)), Address)
            await one.request(OpenDatagrams(towards=(HERE, 9)), Address)
            send = SendDatagrams(
                host=place.host, port=place.port, count=40, per_second=2e3, n_bytes=100
            )
            came, _ = await both(
                other.request(ReceiveDatagrams(silence_s=0.2, limit_s=30.0), Arrivals),
                one.request(send, Done),
            )
            assert came.totals == list(range(1, 41))

    run(test)


def test_work_takes_processor_time(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_end(tmp_path / "a.log") as end:
            kernel_steps = await end.request(RunKernel(repetitions=2, threads=1, steps=5), Steps)
            assert len(kernel_steps.cpu_s) == 5
            assert min(kernel_steps.cpu_s) > 0.0
            computed = await end.request(Compute(lead_s=0.05, lasting_s=0.1, threads=2), Steps)
            assert computed.wall_s[0] >= 0.1
            assert computed.cpu_s[0] > 0.0

    run(test)


def test_a_burst_ends_with_its_first_stop_or_at_its_limit(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_end(tmp_path / "a.log") as end:
            taken = await end.request(Burst(count=3, idle_s=1e-3, limit_s=5e-3), Steps)
            assert len(taken.cpu_s) == len(taken.wall_s) == 3
            assert all(0.0 <= cpu_s < 6e-3 for cpu_s in taken.cpu_s)

    run(test)


def test_passes_are_counted_without_those_of_the_lead(tmp_path: Path) -> None:
    async def test() -> None:
        async with open_end(tmp_path / "a.log") as end:
            command = Passes(n_bytes=1 << 12, threads=2, lead_s=0.02, lasting_s=0.05)
            done = await end.request(command, Work)
            assert done.passes > 0
            assert 0.0 < done.cpu_s < 2 * 0.5

    run(test)


def test_an_order_that_fails_is_told_and_the_end_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path) as (one, other):
            with pytest.raises(EndError, match="ReceiveBlock: "):
                await other.request(ReceiveBlock(n_bytes=1, limit_s=0.05), Instant)
            with pytest.raises(EndError, match="Connect: "):
                await one.request(Connect(host=HERE, port=1), Done)
            assert (
                len((await one.request(RunKernel(repetitions=1, threads=1, steps=1), Steps)).cpu_s)
                == 1
            )

    run(test)


def test_an_end_that_owes_an_answer_takes_no_more_orders(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected(tmp_path) as (one, _):
            with pytest.raises(EndError, match="an end must reply"):
                await one.request(ReceiveBlock(n_bytes=1, limit_s=30.0), Instant, within_s=0.05)
            with pytest.raises(EndError, match="one reply is missing"):
                await one.request(Accept(), Done)

    run(test)
