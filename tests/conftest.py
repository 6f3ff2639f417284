"""What all tests share: tiers, event loops, golden files, and a watch on left-over processes."""

import gc
import os
import secrets
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.idle_time import IdleSkippingLoop, busy_threads_counted
from tests.ledger import LEDGER, Ledger
from tests.processes import describe, is_long_lived, own_children, still_running
from tests.turns import Turns

pytest_plugins = ["tests.tiers"]

SESSION_MARK = "FAIRBED_TEST_SESSION"
"""Environment variable that every process started by a test inherits."""

EXIT_GRACE_S = 10.0
"""How long processes may take to end after the last test, on a busy machine."""

Golden = Callable[[Path, bytes], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--snap", action="store_true", help="write golden files instead of comparing with them"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEDGER] = Ledger()
    config.pluginmanager.register(Turns(), "turns")
    # Under `nohup` and in the background of a script these are ignored, and what tests start would
    # inherit that.
    if os.name == "posix" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves another handler of Ctrl-C: a later one would wait for nothing."""
    result = yield
    if (left := signal.getsignal(signal.SIGINT)) is not signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        pytest.fail(f"{item.nodeid} leaves {left} as the handler of SIGINT")
    return result


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker has written down (`pytest -n 2`)."""
    node.config.stash[LEDGER].lines.extend(getattr(node, "workeroutput", {}).get("ledger", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.unfreeze()  # pytest looks for what was never closed among all that is left
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["ledger"] = session.config.stash[LEDGER].lines


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash[LEDGER].lines
    if lines:
        terminalreporter.section("time lost to faults, beside a run without them")
        for line in sorted(lines):
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run async tests on asyncio, as the product does; on a loop without waits where marked."""
    if request.node.get_closest_marker("idle_time_skipped") is None:
        yield "asyncio", {}
        return
    with busy_threads_counted():
        yield "asyncio", {"loop_factory": IdleSkippingLoop}


@pytest.fixture(scope="session")
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """Where fault tests write down what a fault cost."""
    return request.config.stash[LEDGER]


@pytest.fixture(scope="session")
def snap(request: pytest.FixtureRequest) -> bool:
    """Tell whether golden files and screens are to be written anew (`just snap`)."""
    return bool(request.config.getoption("--snap"))


@pytest.fixture(scope="session")
def golden(snap: bool) -> Golden:
    """Return a check that bytes equal those of a golden file."""

    def check(path: Path, fresh: bytes) -> None:
        if snap:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(fresh)
            return
        assert path.exists(), f"{path.name}: must be in {path.parent}; type: just snap"
        assert fresh == path.read_bytes(), f"{path.name}: the bytes changed; if meant: just snap"

    return check


@pytest.fixture(scope="session", autouse=True)
def hypothesis_is_ready() -> None:
    """Have hypothesis register its random numbers before anything is frozen.

    On Python 3.14 it warns unless the garbage collector finds what refers to them, and it does not
    find what is frozen.
    """

    @settings(max_examples=1, database=None)
    @given(st.none())
    def try_one_example(_: None) -> None:
        pass

    try_one_example()


@pytest.fixture(scope="module", autouse=True)
def garbage_is_young(hypothesis_is_ready: None) -> None:
    """Let a collection of garbage look only at what the tests of one module made.

    An agent collects its garbage as it begins. Among all that the tests import that takes 0.4 s,
    two hundred times as long as on a device.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def leaves_no_process() -> Iterator[None]:
    """Fail the session when a process that a test started, or its orphan, is still there."""
    mark = secrets.token_hex(8)
    os.environ[SESSION_MARK] = mark
    os.environ.pop("FAIRBED_NOTIFY", None)  # no test sends messages to a person
    yield
    left = [describe(process) for process in still_running(_started_here(mark), EXIT_GRACE_S)]
    assert not left, f"processes left behind: {left}"


def _started_here(mark: str) -> list[psutil.Process]:
    ours = {child.pid: child for child in own_children()}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(SESSION_MARK) == mark:
                ours[process.pid] = process
        except psutil.Error:  # gone, or somebody else's
            continue
    return [process for process in ours.values() if not is_long_lived(process)]
