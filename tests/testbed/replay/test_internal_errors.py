"""An internal error in a model of one device ends its exchange, and not the replay."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import INTERNAL_ERROR, EventRow
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.run import replay_experiment
from fairbed.testbed.replay.setup import setup_of
from fairbed.testbed.replay.world import phases, tcp_links
from fairbed.testbed.replay.world.world import ModelFault
from tests.testbed.replay.fleets import experiment
from tests.testbed.replay.test_loss_queries import POW_D, Kept

LINK = """
title = "A link"
licence = "CC0-1.0"

[link]
down_bps = {{ value = 6e6, tag = "literature", source = "invented" }}
up_bps = {{ value = 4e6, tag = "literature", source = "invented" }}
delay_s = {{ value = 0.03, tag = "literature", source = "invented" }}
loss_ratio = {{ value = {loss}, tag = "literature", source = "invented" }}
"""

Fleet = Callable[..., Experiment]


@pytest.fixture(autouse=True)
def contained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contain internal errors, as in a replay of a user."""
    monkeypatch.setattr(ModelFault, "raises", False)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return a function that returns an experiment with four devices whose packets are lost."""
    file = tmp_path / "link.toml"
    file.write_text(LINK.format(loss=0.02))

    def of(**sections: Any) -> Experiment:
        group = {"profile": "raspberry-pi-4b", "count": 4, "name": "pi", "link": str(file)}
        return experiment(group, **({"replay": {"training": False}} | sections))

    return of


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that lets transfers of a row raise, from an instant to another."""

    def breaks(row: int, begin: float = 0.0, end: float = np.inf, direction: str = "down") -> None:
        sound = tcp_links.TcpLinks.transfer

        def transfer(self: tcp_links.TcpLinks, of: int, way: Any, start: float, *rest: Any) -> Any:
            if of == row and way == direction and begin <= start < end:
                raise IndexError("list index\n out of range")
            return sound(self, of, way, start, *rest)

        monkeypatch.setattr(tcp_links.TcpLinks, "transfer", transfer)

    return breaks


def rounds_of(of: Experiment, rounds: int = 20) -> list[ReplayedRound]:
    setup = setup_of(of)
    return list(ReplayEngine(setup.decisions, setup.world).replay(rounds))


def ignore(_: ReplayedRound) -> None:
    """Ignore a round."""


@pytest.mark.parametrize("direction", ["down", "up"])
def test_an_exchange_whose_model_raises_fails_and_the_round_goes_on(
    fleet: Fleet, bug: Callable[..., None], direction: str
) -> None:
    bug(1, direction=direction)
    rounds = rounds_of(fleet())
    outcomes = [(x.row, x.outcome) for one in rounds for x in one.exchanges]
    assert {row for row, outcome in outcomes if outcome == "failed"} == {1}
    assert {outcome for row, outcome in outcomes if row != 1} == {"done"}
    for one in rounds:
        broken = [x for x in one.exchanges if x.row == 1]
        assert [fault.row for fault in one.faults] == [x.row for x in broken]
        for x in broken:
            assert x.entry.reason is not None
            assert x.entry.reason.startswith(
                "internal error in the model of the exchange: IndexError: list index out of range"
            )
            assert "test_internal_errors.py:" in x.entry.reason
            assert x.over_s == pytest.approx(1.0)  # round.void_wait_s
        assert one.lasted_s < 60.0  # the deadline


def test_the_other_exchanges_keep_their_times(fleet: Fleet, bug: Callable[..., None]) -> None:
    def times() -> dict[tuple[int, int], float]:
        rounds = rounds_of(fleet(selection={"per_round": 4}), 3)
        return {(x.round, x.row): x.tau_s for one in rounds for x in one.exchanges}

    sound = times()
    bug(1)
    broken = times()
    assert len(sound) == len(broken) == 12
    of_first = {key: tau_s for key, tau_s in broken.items() if key[0] == 1 and key[1] != 1}
    assert of_first == {key: sound[key] for key in of_first}


def test_a_failed_model_is_not_a_missed_deadline_of_its_device(
    fleet: Fleet, bug: Callable[..., None]
) -> None:
    """So the selector learns nothing of the exchange: no time, no bound, no waste."""
    bug(1)
    limits = [one.reached_limits for one in rounds_of(fleet(selection={"per_round": 4}), 10)]
    assert not any(limits)


@pytest.mark.parametrize(
    "sections",
    [
        {"round": {"mode": "async"}, "selection": {"per_round": 3}},
        {"round": {"late": "merge", "deadline_s": 3}},
    ],
)
def test_time_passes_for_a_device_that_always_fails(
    fleet: Fleet, bug: Callable[..., None], sections: dict[str, Any]
) -> None:
    """It is selected again and again, also at once in an asynchronous round."""
    bug(1)
    rounds = rounds_of(fleet(**sections), 12)
    failed = [x for one in rounds for x in one.over if x.outcome == "failed"]
    assert failed
    assert all(x.over_s == pytest.approx(1.0) for x in failed)
    assert sum(x.is_done for one in rounds for x in one.over) >= 12


def test_an_upload_that_is_granted_late_fails_alone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is in the model of an upload that waited for a slot."""
    setup = setup_of(fleet(selection={"per_round": 4}))
    setup.world.slots = 1

    def upload_s(*_: object) -> float:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(setup.world, "upload_s", upload_s)
    rounds = list(ReplayEngine(setup.decisions, setup.world).replay(3))
    for one in rounds:
        assert sorted(x.outcome for x in one.exchanges) == ["done", "failed", "failed", "failed"]
        assert {fault.during for fault in one.faults} == {"upload"}


def test_a_transfer_in_a_cell_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    group = {
        "profile": "raspberry-pi-4b",
        "count": 3,
        "name": "pi",
        "link": "lte-city",
        "cell": "yard",
    }
    of = experiment(
        group,
        replay={"training": False},
        selection={"per_round": 3},
        cell=[{"name": "yard", "down_bps": 20e6, "up_bps": 10e6}],
    )
    sound = phases.PhaseModel.update_arrival

    def update_arrival(self: phases.PhaseModel, request: Any, *rest: Any) -> float:
        if request.rows[0] == 1:
            raise AssertionError("the air is full")
        return sound(self, request, *rest)

    monkeypatch.setattr(phases.PhaseModel, "update_arrival", update_arrival)
    for one in rounds_of(of, 3):
        assert {x.row: x.outcome for x in one.exchanges} == {0: "done", 1: "failed", 2: "done"}
        assert [(fault.row, fault.during) for fault in one.faults] == [(1, "upload")]


def test_a_link_probe_whose_model_raises_has_no_reply(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device has the rate of before, and is selected as others."""

    def probe(*_: object) -> float:
        raise IndexError("list index out of range")

    monkeypatch.setattr(tcp_links.TcpLinks, "probe", probe)
    first, *_others = rounds_of(fleet(), 3)
    assert [(fault.row, fault.during) for fault in first.faults] == [
        (row, "link probe") for _ in ("down", "up") for row in range(4)
    ]
    assert first.snapshot.is_available.all()


def test_a_loss_query_whose_model_raises_has_no_loss(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its device is not available in this round, and the others do not wait for it."""
    sound = phases.PhaseModel._of_one

    def of_one(self: phases.PhaseModel, request: Any, at: int, row: int, heats: Any) -> Any:
        if self.during == "loss query" and row == 1:
            raise KeyError("no loss")
        return sound(self, request, at, row, heats)

    monkeypatch.setattr(phases.PhaseModel, "_of_one", of_one)
    of = fleet(replay={"examples": None}, selection=POW_D, rounds=3)
    kept = Kept(of, tmp_path / "run")
    assert kept.summary.internal_errors == 3
    for t, queries in kept.queries.items():
        assert {query.device: query.outcome for query in queries} == {
            **dict.fromkeys(["pi-1", "pi-3", "pi-4"], "answered"),
            "pi-2": "failed",
        }
        assert "pi-2" not in {x.device for x in kept.exchanges[t]}
        assert kept.rounds[t].loss_query_s < 10.0


def test_events_and_summary_name_internal_errors(
    fleet: Fleet, bug: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is done, with a warning; the traceback is in the debug log."""
    caplog.set_level(logging.DEBUG)
    bug(1)
    replay_experiment(fleet(rounds=20), tmp_path / "run", "run", ignore)
    with RunReader(tmp_path / "run") as reader:
        summary = summarise_run(reader)
        events = [event for event in events_of(reader) if event.kind == INTERNAL_ERROR]
    assert summary.status == "done"
    assert summary.internal_errors == summary.exchange.failed == len(events) > 1
    assert {event.device for event in events} == {"pi-2"}
    assert {event.level for event in events} == {"error"}
    for event in events:
        assert event.round is not None
        assert "IndexError: list index out of range" in event.text
        assert "please report it" in event.text
        assert "\n" not in event.text
    text = summary_table(summary)
    assert f"warning    {len(events)} exchanges, queries or probes failed through an int" in text
    assert "Traceback (most recent call last)" in caplog.text
    assert 'raise IndexError("list index' in caplog.text


def events_of(reader: RunReader) -> list[EventRow]:
    return [event for _, event in reader.events_of("pi-2")]


def test_a_summary_without_internal_errors_does_not_mention_them(
    fleet: Fleet, tmp_path: Path
) -> None:
    replay_experiment(fleet(rounds=2), tmp_path / "run", "run", ignore)
    with RunReader(tmp_path / "run") as reader:
        summary = summarise_run(reader)
    assert summary.internal_errors == 0
    assert "internal error" not in summary_table(summary)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_replay_with_internal_errors_repeats_exactly_and_resumes(
    fleet: Fleet, bug: Callable[..., None], tmp_path: Path, mode: str
) -> None:
    """Stopped after each third round, it has the rounds of one without an interruption."""
    bug(1, begin=2.0)
    of = fleet(rounds=10, round={"mode": mode}, selection={"per_round": 3})

    class Stop(BaseException):
        """Stops a replay."""

    def rows(name: str) -> list[Any]:
        with RunReader(tmp_path / name) as reader:
            events = [(e.kind, e.round, e.at_s, e.text) for e in events_of(reader)]
            return [[(r.round, r.duration_s, r.aggregated) for r in reader.rounds()], events]

    def stop(one: ReplayedRound) -> None:
        if one.choice.round % 3 == 0:
            raise Stop

    for name in ("whole", "again"):
        replay_experiment(of, tmp_path / name, name, ignore)
    stopped = 0
    while True:
        try:
            replay_experiment(of, tmp_path / "parts", "parts", stop, checkpoint_s=0.0)
            break
        except Stop:
            stopped += 1
    assert stopped >= 3
    assert rows("whole") == rows("again") == rows("parts")
    assert [kind for kind, *_ in rows("whole")[1] if kind == INTERNAL_ERROR]


def test_tests_raise_internal_errors(
    fleet: Fleet, bug: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug of a model is a failure of the tests of Fairbed, and not a row of a store."""
    monkeypatch.setattr(ModelFault, "raises", True)
    bug(1)
    with pytest.raises(IndexError, match="list index"):
        rounds_of(fleet(selection={"per_round": 4}), 2)
