"""A live coordinator distrusts the context of a lying agent, without knowing that it lies."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.coordinator.algorithms.selection.base import Candidates
from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.device_agent.sensors import RealSensors
from fairbed.testbed.emulation.malicious import Attack, MaliciousDevice
from tests.coordinator.lab import lab, make_config
from tests.coordinator.stragglers import SlowTraining
from tests.wire.transport.memory import MemoryBroker

pytestmark = [pytest.mark.anyio, pytest.mark.idle_time_skipped]

DEVICES = 5
LIAR = "pi-1"
TRAIN_S = 0.1
ROUNDS = 12


class OneFreeCore(RealSensors):
    """The sensors of this machine, as if one core were always free."""

    def free_cores(self) -> float:
        """Return one core."""
        return 1.0


class Wiretap(MemoryBroker):
    """Keeps all that is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []

    def route(self, topic: str, payload: bytes, qos: int, retain: bool) -> None:
        self.sent.append(topic.encode() + bytes(payload))
        super().route(topic, payload, qos, retain)


@pytest.mark.parametrize(("speed", "honest"), [(50.0, 0), (0.05, 5)])
async def test_a_lying_context_is_distrusted_and_no_honest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, honest: int
) -> None:
    attack = Attack(kind="lying-context", speed=speed, honest_exchanges=honest)
    selection = SelectionConfig(policy="uniform", per_round=DEVICES, context_check=5.0)
    patient = RoundConfig(min_devices=DEVICES, deadline_s=30.0, join_timeout_s=30.0)
    config = make_config(ROUNDS, DEVICES, selection=selection, round=patient)
    broker = Wiretap()
    async with lab(tmp_path, agents=0, broker=broker) as place:
        for row in range(DEVICES):
            name = f"pi-{row}"
            host = replace(SlowTraining(TRAIN_S).host(), sensors=OneFreeCore())
            if name == LIAR:
                host = replace(host, behaviour=MaliciousDevice(attack))
            place.start_agent(name, host=host)
        store = place.open_store()
        coordinator = place.coordinator(config, store)
        selector, received = coordinator._setup.decisions.selector, list[Candidates]()
        select = selector.select

        def spy(candidates: Candidates, count: int, rng: np.random.Generator) -> Ints:
            received.append(candidates)
            return select(candidates, count, rng)

        monkeypatch.setattr(selector, "select", spy)
        assert await coordinator.run() == "done"
        store.close()
    with place.reader() as reader:
        events = [e for _, e in reader.events() if e.kind == "context check"]
        lies = [x.round for x in reader.exchanges(0) if x.is_valid and x.mu_cores == speed]
    [found] = events
    assert (found.device, found.round) == (LIAR, lies[2])
    claimed, shown = f"claims {speed:g} free cores, but its exchange shows ", found.text
    assert shown.startswith(claimed)
    assert float(shown[len(claimed) :].split(";")[0]) == pytest.approx(1.0, rel=0.5)
    # The truth stays in the agent: no message has it, and the selector gets no more than usual.
    known = {"round", "is_available", "tau_hat_s", "width_s", "transfer_hat_s", "n_k"}
    assert len(received) == ROUNDS
    for one in received:
        assert {f.name for f in fields(one) if getattr(one, f.name) is not None} == known
    assert len(broker.sent) > DEVICES * ROUNDS
    for word in (b"lying", b"malicious", b"attack"):
        assert not [sent for sent in broker.sent if word in sent.lower()]
