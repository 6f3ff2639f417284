"""The script of a round, played by a third driver: an application with a strategy of its own."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal

import numpy as np
import pytest
from msgspec import structs

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.coordinator.algorithms.estimation.base import CONTEXT, PHASES, Prediction
from fairbed.coordinator.algorithms.selection.explanation import Explanation
from fairbed.coordinator.policy.config import (
    CoordinatorConfig,
    EvaluationConfig,
    PersonalisationConfig,
    RoundConfig,
    SelectionConfig,
)
from fairbed.coordinator.policy.selection import (
    LossDemand,
    Observations,
    ReportedLosses,
    Roster,
    Selection,
)
from fairbed.coordinator.script.ended import Ended
from fairbed.coordinator.script.round import (
    OVER,
    AwaitChange,
    AwaitDevices,
    Close,
    ClosedRound,
    Collect,
    Dispatch,
    Evaluate,
    GiveUp,
    Instant,
    Merge,
    Observe,
    ObservedFleet,
    QueryLosses,
    Record,
    Release,
    RoundScript,
    ScorePersonal,
    Shown,
    Step,
    TrainCohort,
    first_table,
)
from fairbed.coordinator.state.exchange import Exchange, ExchangeState
from fairbed.coordinator.state.loss_query import QueryOutcome
from fairbed.coordinator.state.round import Arrived, Checked, DeviceFailed, Offered, Tick
from tests.coordinator.builders import offer
from tests.coordinator.lab import make_config

N = 3


class EveryOther:
    """A strategy that is none of this product: devices take turns, whatever they report."""

    def __init__(self, config: CoordinatorConfig, *, queries_losses: bool = False) -> None:
        self.config, self.queries_losses = config, queries_losses
        self.learnt: list[tuple[Sequence[int], Sequence[int]]] = []
        """Rows that were merged, and rows that had left."""
        self.losses: list[list[float]] = []

    def reconfigure(self, config: CoordinatorConfig) -> None:
        self.config = config

    def loss_demand(
        self, round_id: int, roster: Roster, transfer_bits: Any, now: float, true_tau_s: Any = None
    ) -> LossDemand:
        return LossDemand(round_id, np.flatnonzero(roster.available(now)), "all")

    def learn_replies(self, round_id: int, losses: ReportedLosses) -> None:
        self.losses.append(losses.loss.tolist())

    def select(
        self,
        round_id: int,
        roster: Roster,
        transfer_bits: tuple[float | Floats, float | Floats],
        now: float,
        true_tau_s: Floats | None = None,
        losses: ReportedLosses | None = None,
        *,
        count: int | None = None,
        selections_before: int = 0,
    ) -> Selection:
        is_available = roster.available(now)
        rows = np.flatnonzero(is_available)[: self.config.cohort_size if count is None else count]
        nothing = np.zeros(N)
        return Selection(
            round=round_id,
            rows=rows,
            is_available=is_available,
            context=np.zeros((N, CONTEXT)),
            prediction=Prediction(nothing, nothing, nothing),
            n_k=np.ones(N, dtype=np.int64),
            propensity=nothing,
        )

    def explain(self, selection: Selection) -> Explanation:
        return Explanation(np.zeros(N, dtype=np.int64), np.zeros(N), np.zeros(N))

    def learn(self, selection: Selection, observed: Observations, left: Sequence[int] = ()) -> None:
        self.learnt.append((observed.rows[observed.is_aggregated].tolist(), left))


class Columns:
    """A fleet whose devices are available or not."""

    def __init__(self, is_available: Sequence[bool]) -> None:
        self._is_available = np.array(is_available)

    def contexts(self, down_bits: Any, up_bits: Any, coding: str) -> Floats:
        return np.zeros((N, CONTEXT))

    def cores(self) -> Floats:
        return np.ones(N)

    def available(self, now: float) -> Any:
        return self._is_available.copy()

    def n_k(self) -> Any:
        return np.ones(N, dtype=np.int64)


class App:
    """A driver without clock and messages: every device takes a second, or fails."""

    def __init__(
        self,
        config: CoordinatorConfig,
        *,
        queries_losses: bool = False,
        training: Literal["meanwhile", "at close", "never"] = "meanwhile",
    ) -> None:
        self.strategy = EveryOther(config, queries_losses=queries_losses)
        self.script = RoundScript(
            self.strategy, lambda: first_table(self.strategy.config, 1, 0, 8), training=training
        )
        self.now = 0.0
        self.available: list[bool] = [True] * N
        self.failing: set[str] = set()
        self.diverging: set[str] = set()
        """Devices whose update turns out to be none when the round trains."""
        self.steps: list[Step[Any]] = []
        self.left: Sequence[int] = ()
        self.released: list[str] = []

    def play(self) -> ClosedRound:
        """Play one round."""
        script, answer = self.script.round(), None
        self.steps = []
        while True:
            try:
                step = script.send(answer)
            except StopIteration as end:
                closed: ClosedRound = end.value
                return closed
            self.steps.append(step)
            answer = self.answer(step)

    @property
    def kinds(self) -> list[type[Step[Any]]]:
        """The steps of the last round."""
        return [type(step) for step in self.steps]

    def answer(self, step: Step[Any]) -> Any:
        table = self.script.table
        assert table is not None
        match step:
            case Observe():
                busy = {x.device for x in table.all_exchanges()} - set(self.released)
                free = [ok and str(row) not in busy for row, ok in enumerate(self.available)]
                return ObservedFleet(roster=Columns(free), now=self.now, transfer_bits=(0.0, 0.0))
            case QueryLosses(demand=demand, query=query):
                for row in demand.rows.tolist():
                    query.add(str(row), self.now)
                    query.end(str(row), QueryOutcome.FAILED, "no loss")
            case Dispatch(selection=selection):
                for row in selection.rows.tolist():
                    table.dispatch(str(row), self.now)
            case Collect():
                while not table.is_over:
                    self.pass_event()
            case AwaitChange():
                self.pass_event()
                return ()
            case Release(exchanges=exchanges):
                self.released += [x.device for x in exchanges]
            case AwaitDevices():
                self.now += 1.0
            case GiveUp(reason=reason):
                table.end_all(reason, self.now)
            case TrainCohort():
                for x in table.ended:
                    if x.device in self.diverging:
                        x.state = ExchangeState.FAILED
            case Close():
                self.released = []
            case Merge(closed=closed):
                return Shown(ended_columns_of(closed.ended), self.now, self.left)
        return None

    def pass_event(self) -> None:
        """Let the device whose exchange is open for longest finish or fail."""
        table = self.script.table
        assert table is not None
        self.now += 1.0
        open_ = [x for x in table.all_exchanges() if x.state.is_open and not x.is_late]
        if not open_:
            table.on(Tick(), self.now)
            return
        device = open_[0].device
        if device in self.failing:
            table.on(DeviceFailed(device, "x"), self.now)
            return
        table.on(Offered(device, offer()), self.now)
        table.on(Arrived(device, at=self.now, bytes_up=1, duplicates=0), self.now)
        table.on(Checked(device, None), self.now)


def ended_columns_of(ended: Sequence[Exchange]) -> Ended:
    """Return exchanges without measurements."""
    k = len(ended)
    no, unknown = np.zeros(k, dtype=np.bool_), np.full(k, np.nan)
    return Ended(
        rows=np.array([int(x.device) for x in ended], dtype=np.int64),
        states=[x.state for x in ended],
        is_late=no,
        is_trusted=~no,
        tau_s=unknown,
        phases_s=np.full((k, len(PHASES)), np.nan),
        at_least_s=unknown,
        wasted_s=unknown,
        loss=unknown,
        was_cold=no,
        context=np.full((k, CONTEXT), np.nan),
    )


def config(rounds: int = 2, per_round: int = 2, **sections: Any) -> CoordinatorConfig:
    selection = SelectionConfig(policy="uniform", per_round=per_round)
    return make_config(rounds, selection=selection, **sections)


BARE = [Observe, Dispatch, Collect, Close, Merge, Record, Evaluate]


def test_a_bare_round_has_no_step_of_a_feature_that_is_off() -> None:
    app = App(config())
    closed = app.play()
    assert app.kinds == BARE
    assert (closed.merged, closed.table.version) == ({"0", "1"}, 0)
    assert app.script.table is not None
    assert (app.script.table.id, app.script.table.version) == (2, 1)
    assert app.strategy.learnt == [([0, 1], ())]


def test_the_last_round_gives_up_what_is_open() -> None:
    app = App(config(rounds=1))
    app.play()
    assert app.kinds == [*BARE[:3], GiveUp, *BARE[3:]]
    assert app.steps[3] == GiveUp(OVER)
    assert app.steps[-1] == Evaluate(app.steps[-2].closed, is_last=True)  # type: ignore[attr-defined]


def test_nothing_can_be_waited_for_between_two_tables() -> None:
    """From the last event of a table to the next one only instants happen."""
    app = App(config(rounds=1))
    app.play()
    between = app.steps[app.kinds.index(Collect) + 1 : app.kinds.index(Close) + 1]
    assert between
    assert all(isinstance(step, Instant) for step in between)


def test_rounds_without_a_device_do_not_count_as_rounds_of_the_run() -> None:
    app = App(config(rounds=1, evaluation=EvaluationConfig(every=0)))
    app.available = [False] * N
    first, second = app.play(), app.play()
    assert app.kinds == [Observe, Dispatch, AwaitDevices, Close, Merge, Record]
    assert [(x.is_empty, x.is_repeated, x.rounds_empty) for x in (first, second)] == [
        (True, False, 1),
        (True, True, 2),
    ]
    assert (app.script.end_of_run, app.script.empty_since) == (3, 0.0)
    app.available = [True] * N
    assert not app.play().is_empty
    assert (app.script.end_of_run, app.script.empty_since) == (3, None)
    assert GiveUp in app.kinds, "the third round is the last one"


def test_an_operator_ends_the_run_with_an_empty_round_too() -> None:
    app = App(config(rounds=9))
    app.available, app.script.last_round = [False] * N, 1
    app.play()
    assert GiveUp in app.kinds
    assert app.kinds[-1] is Evaluate


def test_a_loss_query_precedes_the_selection_and_its_round_is_not_empty() -> None:
    app = App(config(), queries_losses=True)
    app.available = [True, False, True]
    closed = app.play()
    assert app.kinds[:4] == [Observe, QueryLosses, Observe, Dispatch]
    np.testing.assert_array_equal(app.strategy.losses, [[np.nan, np.nan]])
    assert closed.query is not None
    assert (list(closed.query.devices), closed.query.answered()) == (["0", "2"], set())


def test_an_update_that_comes_to_nothing_in_training_makes_no_version() -> None:
    app = App(config(per_round=1), training="at close")
    app.diverging = {"0"}
    closed = app.play()
    assert app.kinds.index(TrainCohort) < app.kinds.index(Close)
    assert closed.merged == set()
    assert app.script.table is not None
    assert app.script.table.version == 0


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ("meanwhile", [[ScorePersonal], [ScorePersonal, Evaluate]]),
        ("at close", [[], [ScorePersonal, Evaluate]]),
        ("never", [[], []]),
    ],
)
def test_personal_models_are_scored_before_the_evaluation(
    training: Literal["meanwhile", "at close", "never"], steps: list[list[type[Step[Any]]]]
) -> None:
    personal, every = PersonalisationConfig(method="ditto"), EvaluationConfig(every=2)
    app = App(config(rounds=9, personalisation=personal, evaluation=every), training=training)
    for expected in steps:
        app.play()
        assert app.kinds[app.kinds.index(Record) + 1 :] == expected


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3]), (2, [2, 3]), (0, [3])])
def test_the_model_is_evaluated_at_the_configured_interval(
    every: int, evaluated: list[int]
) -> None:
    app = App(config(rounds=3, evaluation=EvaluationConfig(every=every)))
    assert [t for t in (1, 2, 3) if app.play() and Evaluate in app.kinds] == evaluated


def test_a_device_that_ended_on_an_earlier_version_replaces_itself() -> None:
    rules = RoundConfig(mode="async", buffer=1, concurrency=2, deadline_s=100.0)
    app = App(config(rounds=9, round=rules))
    first = app.play()
    assert list(first.table.exchanges) == ["0", "1"], "no device trains a version twice"
    assert (first.started, first.merged) == (0.0, {"0"})
    app.failing = {"1"}
    app.now += 5.0
    second = app.play()
    assert [type(step) for step in app.steps if isinstance(step, Release)] == [Release]
    assert sorted(second.table.exchanges) == ["0", "1"], "1 failed on the first version"
    assert second.selection.rows.tolist() == [0, 1]
    assert second.started == 1.0, "devices work between asynchronous rounds, too"


def test_an_asynchronous_round_without_a_device_waits_for_one() -> None:
    rules = RoundConfig(mode="async", buffer=1, concurrency=2, deadline_s=100.0)
    app = App(config(rounds=9, round=rules))
    app.available = [False] * N
    assert app.play().is_empty
    assert app.kinds[:3] == [Observe, Dispatch, AwaitDevices]


def test_devices_that_have_left_do_not_count_but_for_the_cohort() -> None:
    app = App(config(per_round=1))
    app.left = [0, 2, 7]
    app.play()
    assert app.strategy.learnt == [([0], [2])], "0 is of the cohort, 7 joined after the selection"


def test_a_change_of_the_operator_holds_for_the_next_table() -> None:
    app = App(config(rounds=9))
    app.script.next_config = structs.replace(app.strategy.config, rounds=8)
    app.play()
    assert app.strategy.config.rounds == 8, "also before the first table"
    rules = structs.replace(app.strategy.config.round, deadline_s=7.0)
    app.script.next_config = structs.replace(app.strategy.config, round=rules)
    closed = app.play()
    assert closed.table.deadline_s == app.strategy.config.round.deadline_s == 7.0
    assert app.script.next_config is None


def test_the_page_of_the_design_shows_the_script() -> None:
    page = (Path(__file__).parents[3] / "docs" / "design.md").read_text(encoding="utf-8")
    _, _, body = dedent(inspect.getsource(RoundScript.round)).split('"""')
    assert dedent(body).strip() in page
