"""A step without end, of a graph that a coordinator sent, does not stop the device for ever."""

import threading
from pathlib import Path
from unittest import mock

import pytest

from fairbed.device_agent import worker
from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.errors import EngineError
from fairbed.device_agent.host import Host, UnlimitedPace
from fairbed.device_agent.sensors import RealSensors
from fairbed.device_agent.training_work import TrainingWork
from fairbed.device_agent.worker import TrainingThread
from fairbed.wire.artifact import Artifact
from tests.device_agent.clock import ManualClock
from tests.device_agent.softmax import SoftmaxEngine

pytestmark = pytest.mark.anyio

WAIT_S = 20.0


class StuckEngine(SoftmaxEngine):
    """An engine whose step lasts until it is interrupted."""

    def __init__(self, took_s: float) -> None:
        self.took_s = took_s
        self.interrupted = threading.Event()

    def running_s(self) -> float:
        return self.took_s

    def interrupt(self) -> None:
        self.interrupted.set()

    def step(self) -> str:
        if not self.interrupted.wait(WAIT_S):
            return "went on"
        raise EngineError("interrupted")


def thread_with(engine: StuckEngine, folder: Path) -> TrainingThread:
    host = Host(clock=ManualClock(), pace=UnlimitedPace(), sensors=RealSensors())

    def open_engine(artifact: Artifact, threads: int) -> StuckEngine:
        return engine

    made = TrainingThread(host, BlobCache(folder, 1_000), folder, open_engine)
    work = made._begun()
    assert isinstance(work, TrainingWork)
    work._opened(mock.Mock(spec=Artifact))
    return made


@pytest.mark.parametrize(
    ("took_s", "is_stopped", "ends"),
    [
        (worker.STOP_STEP_S + 1.0, True, True),
        (worker.MAX_STEP_S + 1.0, False, True),
        (worker.STOP_STEP_S - 1.0, True, False),
        (worker.STOP_STEP_S + 1.0, False, False),
    ],
)
async def test_a_step_is_ended_after_its_round_or_after_ten_minutes(
    took_s: float, is_stopped: bool, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WATCH_S", 0.01)
    monkeypatch.setattr("tests.device_agent.test_watchdog.WAIT_S", WAIT_S if ends else 0.1)
    engine = StuckEngine(took_s)
    thread = thread_with(engine, tmp_path)
    if ends:
        with pytest.raises(EngineError, match="interrupted"):
            await thread._in_thread(engine.step, lambda: is_stopped)
    else:
        assert await thread._in_thread(engine.step, lambda: is_stopped) == "went on"
