"""The selection of a round in words, from the store."""

from pathlib import Path

import pytest

from fairbed.coordinator.algorithms.selection.base import Reason
from fairbed.coordinator.report.selection_reasons import (
    RoundChoice,
    alternative_line,
    choice_table,
    objective_line,
    read_choice,
    reason_text,
    terms_of,
)
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import SelectionRow
from tests.coordinator.store.fake_run import VOID_ROUND, fake_run


def choice_of(folder: Path, round_id: int) -> RoundChoice:
    with RunReader(folder) as reader:
        choice = read_choice(reader, round_id)
    assert choice is not None
    return choice


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of twelve devices, four per round; V is 0, so queues alone decide."""
    folder = tmp_path_factory.mktemp("runs") / "demo-1"
    fake_run(folder, rounds=12)
    return folder


def test_the_cohort_comes_first_then_the_nearest_alternatives(folder: Path) -> None:
    choice = choice_of(folder, 3)
    assert (choice.run_id, choice.round, choice.selected, choice.available) == ("demo-1", 3, 4, 12)
    assert [one.is_selected for one in choice.devices] == [True] * 4 + [False] * 8
    margins = [one.margin for one in choice.devices[4:]]
    assert None not in margins
    assert margins == sorted(margins, key=float)  # type: ignore[arg-type]  # no None


def test_queues_before_a_round_are_those_after_the_last_one(folder: Path) -> None:
    before, now = choice_of(folder, 4), choice_of(folder, 5)
    after = {one.device: one.queue for one in before.devices}
    assert {one.device: one.queue_before for one in now.devices} == after
    assert {one.queue_before for one in choice_of(folder, 1).devices} == {0.0}


def test_the_objective_is_that_of_the_queues(folder: Path) -> None:
    choice = choice_of(folder, 3)
    queues = [one.queue_before for one in choice.devices]
    assert choice.objective == pytest.approx(-sum(queues[:4]))
    assert choice.alternative == pytest.approx(-sum(queues[:4]) + min(queues[:4]) - max(queues[4:]))
    assert objective_line(choice) == (
        f"V x longest predicted time - sum of queues Z = {choice.objective:.4g} (lower is better)"
    )
    assert alternative_line(choice).startswith(
        f"{choice.alternative_in} instead of {choice.alternative_out}: "
    )


def test_a_void_round_has_no_objective(folder: Path) -> None:
    choice = choice_of(folder, VOID_ROUND)
    assert (objective_line(choice), alternative_line(choice)) == ("", "")
    assert {one.why for one in choice.devices} == {"offline, or silent"}


def test_a_round_that_is_not_closed_has_no_selection(folder: Path) -> None:
    with RunReader(folder) as reader:
        assert read_choice(reader, 0) is None
        assert read_choice(reader, 13) is None


def test_a_table_leaves_out_columns_that_do_not_fit_but_never_the_reason(folder: Path) -> None:
    choice = choice_of(folder, 3)
    lines = choice_table(choice, 84).splitlines()
    (heads,) = [line for line in lines if line.startswith("device ")]
    assert heads.split() == ["device", "selected", "Z", "before", "score", "why"]
    assert "measured s" in choice_table(choice)
    assert len(choice_table(choice).splitlines()) == 7 + 12


def row(reason: Reason, margin: float | None, *, is_selected: bool = False) -> SelectionRow:
    return SelectionRow(
        round=1,
        device="pi-1",
        is_available=True,
        is_selected=is_selected,
        is_aggregated=False,
        tau_hat_s=1.0,
        width_s=0.1,
        queue=0.0,
        propensity=0.0,
        is_audit=False,
        reason=reason.word,
        score=0.5,
        margin=margin,
    )


@pytest.mark.parametrize(
    ("policy", "reason", "margin", "text"),
    [
        ("rbcs-f", Reason.OUTRANKED, 0.31, "outranked; with it 0.31 worse"),
        ("rbcs-f", Reason.OUTRANKED, 0.0, "lost a tie"),
        ("fedcs", Reason.OUTRANKED, 0.31, "outranked; with it 0.31 s worse"),
        ("fedcs", Reason.OVER_DEADLINE, 1.25, "1.25 s over the deadline"),
        ("oort", Reason.OUTRANKED, 0.5, "score 0.5 below the cut-off"),
        ("power-of-choice", Reason.OUTRANKED, 0.1, "outranked; with it 0.1 nats worse"),
        ("power-of-choice", Reason.OUTRANKED, None, "outranked"),
        ("my.mod:Policy", Reason.OUTRANKED, 2.0, "outranked; with it 2 worse"),
        ("my.mod:Policy", Reason.UNSTATED, None, "no reason is stored"),
        ("uniform", Reason.NOT_DRAWN, None, "not drawn"),
        ("rbcs-f", Reason.MISS_LIMIT, None, "missed too many deadlines in a row"),
    ],
)
def test_a_reason_is_a_few_words(
    policy: str, reason: Reason, margin: float | None, text: str
) -> None:
    assert reason_text(row(reason, margin), terms_of(policy)) == text


def test_a_device_of_the_cohort_says_what_its_absence_would_cost() -> None:
    terms = terms_of("rbcs-f")
    ranked = row(Reason.RANKED, 0.75, is_selected=True)
    assert reason_text(ranked, terms) == "best cohort; without it 0.75 worse"
    assert reason_text(row(Reason.RANKED, 0.0, is_selected=True), terms) == "chosen in a tie"
    assert reason_text(row(Reason.RANKED, None, is_selected=True), terms) == "best cohort"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_words(reason: Reason) -> None:
    for margin in (None, 0.0, 0.5):
        text = reason_text(row(reason, margin), terms_of("rbcs-f"))
        assert text
        assert len(text) <= 45
