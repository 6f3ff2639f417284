"""Everything of a run has its name, is removed with it, and is swept if the run was killed."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from fairbed.testbed.backends.network.network import open_network
from fairbed.testbed.backends.network.owner import FOLDER
from fairbed.testbed.backends.network.plan.names import PREFIX, NetworkNames, owner_of
from fairbed.testbed.backends.network.probe import Support
from fairbed.testbed.backends.network.sweep import NAMESPACES, processes_inside, sweep
from fairbed.testbed.emulation.conditions import Shape
from tests.bounded import LIMIT_S, run

pytestmark = pytest.mark.usefixtures("untouched_host")

DEVICES: dict[str, Shape | None] = {"pi-00": Shape(up_bps=2e6), "hub": None, "lab": None}

HOLDER = """
import sys, anyio
from fairbed.testbed.backends.network.network import open_network
from fairbed.testbed.emulation.conditions import Shape

async def main():
    shape = Shape(down_bps=1e6, delay_s=float(sys.argv[2]))
    async with open_network(sys.argv[1], {"pi": shape, "lab": None}) as network:
        print(network.namespace("pi"), flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main)
"""
"""Opens a network and keeps it until its stdin ends."""


def _left_of(stem: str) -> set[str]:
    """Return the namespaces, lock file and link on the host that a run has."""
    namespaces = NAMESPACES.glob(f"{stem}*") if NAMESPACES.exists() else ()
    links = {name for _, name in socket.if_nameindex() if name == NetworkNames(stem).host_link}
    return {path.name for path in (*namespaces, *FOLDER.glob(f"{stem}.*"))} | links


def _stem_of(namespace: Path) -> str:
    names = owner_of(namespace.name)
    assert names is not None
    return names.stem


def _sleeper(namespace: Path) -> "subprocess.Popen[str]":
    """Start a process in a namespace; return when it is there."""
    argv = ["nsenter", f"--net={namespace}", "sh", "-c", "echo up; exec sleep 600"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert _line(child) == "up"
    return child


def test_simultaneous_networks_have_different_names_and_addresses() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            networks = [
                await stack.enter_async_context(open_network("test", {"pi": None}))
                for _ in range(3)
            ]
            assert len({network.hub_address for network in networks}) == 3
            assert len({network.namespace("pi") for network in networks}) == 3

    run(test)


def test_networks_may_be_opened_at_the_same_time() -> None:
    async def test() -> None:
        addresses = []
        all_up = anyio.Event()

        async def hold() -> None:
            async with open_network("test", {"pi": None}) as network:
                addresses.append(network.hub_address)
                if len(addresses) == 4:
                    all_up.set()
                await all_up.wait()

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(hold)
        assert len(set(addresses)) == 4

    run(test)


def test_processes_inside_are_killed_when_the_network_closes() -> None:
    async def test() -> None:
        async with open_network("test", {"pi": None}) as network:
            child = await run_sync(_sleeper, network.namespace("pi"))
            assert processes_inside([network.namespace("pi")]) == [child.pid]
        _, _ = child.communicate(timeout=10.0)
        assert child.returncode == -signal.SIGKILL

    run(test)


@pytest.mark.alone  # any other network that opens removes the leftovers, too
@pytest.mark.parametrize(
    ("inner", "delay_s"),
    [(False, "0"), (True, "0"), (False, "0.01")],
    ids=["alone", "with a process inside", "with a relay"],
)
def test_the_next_start_removes_leftovers_of_a_killed_run(
    inner: bool, delay_s: str, support: Support
) -> None:
    if delay_s != "0" and support.delay is None:
        pytest.skip(str(support.delay_problem))
    holder = _hold("killed", delay_s)
    namespace = Path(_line(holder))
    stem = _stem_of(namespace)
    child = _sleeper(namespace) if inner else None
    holder.kill()
    holder.communicate()
    try:
        assert len(_left_of(stem)) == 5  # hub, two devices, lock file, link on the host

        async def test() -> None:
            async with open_network("next", {"pi": None}):
                assert _left_of(stem) == set()

        run(test)
        if child is not None:
            child.communicate(timeout=10.0)
            assert child.returncode == -signal.SIGKILL
    finally:
        if child is not None:
            child.kill()
            child.communicate()
        anyio.run(sweep)


def test_a_sweep_skips_live_runs_and_may_be_repeated() -> None:
    holder = _hold("neighbour")
    namespace = Path(_line(holder))
    try:
        for _ in range(2):
            assert _stem_of(namespace) not in anyio.run(sweep)
            assert namespace.exists()
    finally:
        holder.communicate(timeout=30.0)
    assert not namespace.exists()
    assert holder.returncode == 0


IN_FRONT = 'ip link set lo up && mount -t tmpfs none /run && exec "$@"'
"""As `probe` advises."""


def test_it_works_without_root_in_a_user_namespace(support: Support) -> None:
    probe = ["unshare", "-Urnm", "true"]
    if subprocess.run(probe, check=False, capture_output=True, timeout=30.0).returncode:
        pytest.skip("this machine allows no user namespaces")
    own = ["unshare", "-Urnm", "sh", "-c", IN_FRONT, "-"]
    delay_s = "0.01" if support.delay is not None else "0"
    done = subprocess.run(
        [*own, sys.executable, "-c", HOLDER, "unprivileged", delay_s],
        input="",
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{NAMESPACES}/{PREFIX}.unprivileged.")


def test_everything_of_a_run_has_its_name_and_is_removed_with_it() -> None:
    async def test() -> None:
        async with open_network("a run", DEVICES) as network:
            stem = _stem_of(network.namespace("lab"))
            assert stem.startswith(f"{PREFIX}.a-run.")
            assert len(_left_of(stem)) == len(DEVICES) + 3  # hub, lock file, link on the host
        assert _left_of(stem) == set()

    run(test)


def _hold(run_id: str, delay_s: str = "0") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, run_id, delay_s],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the child must open its network; see its stderr"
    return line
