"""Alerts begin and end by rules that are pure."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.state.alerts import (
    ALERT_KINDS,
    CLEAR_S,
    HOLD_S,
    MIN_FREE_BYTES,
    WINDOW_ROUNDS,
    AlertKind,
    Alerts,
    AvailabilityWindow,
    HostLoad,
    LossGrowth,
    broker_lost,
    disk_low,
    divergence,
    infeasible,
    no_device,
)
from fairbed.coordinator.state.waits import some

GB = 10**9


def test_an_alert_begins_when_its_condition_has_held_and_dates_from_its_first_instant() -> None:
    alerts = Alerts()
    assert alerts.update({"no device": "none"}, 10.0) == []
    assert alerts.update({"no device": "none"}, 14.9) == []
    assert not alerts.stands("no device")
    (change,) = alerts.update({"no device": "none"}, 15.0)
    assert (change.begin_s, change.is_new, change.is_over) == (10.0, True, False)
    assert change.line == "no device: none"
    assert alerts.stands("no device")


def test_a_condition_that_passes_at_once_is_no_alert() -> None:
    alerts = Alerts()
    for at_s in range(0, 100, 4):
        assert alerts.update({"no device": "none"}, float(at_s)) == []
        assert alerts.update({"no device": None}, at_s + 2.0) == []


def test_an_alert_ends_when_its_condition_was_over_for_a_while_and_dates_from_its_end() -> None:
    alerts = Alerts()
    alerts.update({"broker lost": "down"}, 0.0)
    alerts.update({"broker lost": "down"}, 2.0)
    assert alerts.update({"broker lost": None}, 5.0) == []
    assert alerts.update({"broker lost": "down"}, 6.0) == []
    assert alerts.update({"broker lost": None}, 7.0) == []
    (change,) = alerts.update({"broker lost": None}, 9.0)
    assert (change.begin_s, change.end_s, change.is_new) == (0.0, 7.0, False)
    assert change.line == "broker lost: over after 7 s"
    assert not alerts.stands("broker lost")


def test_another_text_changes_an_alert_that_stands_and_the_same_one_does_not() -> None:
    alerts = Alerts()
    alerts.update({"disk low": "1 GB"}, 0.0)
    assert alerts.update({"disk low": "1 GB"}, 1.0) == []
    (change,) = alerts.update({"disk low": "0.9 GB"}, 2.0)
    assert (change.text, change.begin_s, change.is_new, change.is_over) == (
        "0.9 GB",
        0.0,
        False,
        False,
    )


def test_a_kind_that_was_not_examined_keeps_its_alert() -> None:
    alerts = Alerts()
    alerts.update({"infeasible": "x"}, 0.0)
    assert alerts.update({"disk low": None}, 100.0) == []
    assert alerts.stands("infeasible")


def test_an_alert_that_is_over_ends_at_once_with_its_run_and_one_that_holds_stays() -> None:
    alerts = Alerts()
    for at_s in (0.0, 6.0):
        alerts.update({"no device": "none", "broker lost": "down"}, at_s)
    alerts.update({"no device": None, "broker lost": "down"}, 7.0)
    (change,) = alerts.finish()
    assert (change.kind, change.begin_s, change.end_s) == ("no device", 0.0, 7.0)


found = st.dictionaries(st.sampled_from(ALERT_KINDS), st.sampled_from([None, "a", "b"]))


@given(st.lists(st.tuples(found, st.floats(0.1, 10.0)), max_size=60))
def test_begins_and_ends_alternate_and_a_long_absence_ends_every_alert(
    steps: list[tuple[dict[AlertKind, str | None], float]],
) -> None:
    alerts, now = Alerts(), 0.0
    standing: dict[AlertKind, float] = {}
    for conditions, pause_s in steps:
        now += pause_s
        for change in alerts.update(conditions, now):
            if change.is_new:
                assert change.kind not in standing
                assert now - change.begin_s >= HOLD_S.get(change.kind, 0.0)
                standing[change.kind] = change.begin_s
            elif change.end_s is not None:
                assert standing.pop(change.kind) == change.begin_s <= change.end_s <= now
            else:
                assert change.kind in standing
        assert {kind for kind in ALERT_KINDS if alerts.stands(kind)} == set(standing)
    nothing: dict[AlertKind, str | None] = dict.fromkeys(ALERT_KINDS)
    alerts.update(nothing, now)
    alerts.update(nothing, now + max(CLEAR_S.values()) + 0.1)
    assert not any(alerts.stands(kind) for kind in ALERT_KINDS)


def test_no_device_counts_the_states_of_those_that_are_known() -> None:
    assert no_device(["idle", "gone"], present=1) is None
    assert "(2 gone, 1 unwilling)" in (no_device(["gone", "unwilling", "gone"], 0) or "")
    assert "(none joined)" in (no_device([], 0) or "")
    assert "broken pipe" in broker_lost("broken pipe")


def test_the_availability_of_a_device_is_certain_only_after_many_rounds() -> None:
    """Wilson, 1927: 0 of n rounds leave z^2 / (n + z^2) possible."""
    window = AvailabilityWindow()
    assert window.upper_bounds(2).tolist() == [1.0, 1.0]
    for _ in range(10):
        window.add(np.array([True, False]))
    upper = window.upper_bounds(3)
    assert upper[0] == pytest.approx(1.0)
    assert upper[1] == pytest.approx(1.96**2 / (10 + 1.96**2), abs=1e-12)
    assert upper[2] == 1.0, "a device that joined after these rounds"
    for _ in range(WINDOW_ROUNDS):
        window.add(np.array([True, True, False]))
    assert window.upper_bounds(3)[1] == pytest.approx(1.0), "old rounds do not count"


def test_half_of_the_rounds_leave_the_bound_of_a_textbook() -> None:
    window = AvailabilityWindow()
    for n in range(10):
        window.add(np.array([n % 2 == 0]))
    assert window.upper_bounds(1)[0] == pytest.approx(0.7634, abs=1e-4)  # Wilson, 5 of 10, 95 %


def test_a_rate_is_infeasible_with_too_few_selections_or_a_device_that_is_away() -> None:
    names = [f"pi-{i}" for i in range(4)]
    assert infeasible(names, np.ones(4), 2, 0.5) is None
    text = infeasible(names, np.ones(4), 1, 0.3)
    assert text is not None
    assert text.startswith("selection.beta 0.3 cannot be guaranteed: the 4 least available of 4")
    assert "set beta to at most 0.250" in text
    text = infeasible(names, np.array([1.0, 1.0, 0.1, 1.0]), 2, 0.3)
    assert text is not None
    assert "bring back pi-2, exclude what stays away" in text
    assert infeasible([], np.ones(0), 1, 0.9) is None


def test_a_busy_host_is_reported_from_five_of_twenty_exchanges_until_one_is_left() -> None:
    load = HostLoad()
    for i in range(4):
        load.add(f"pi-{i}", True)
    assert load.text(is_standing=False) is None
    load.add("pi-3", True)
    text = load.text(is_standing=False)
    assert text is not None
    assert "delayed 5 of the newest 5 exchanges" in text
    assert text.endswith("; delayed most often: pi-3, pi-0, pi-1, pi-2")
    advice = text.partition("; delayed most")[0]
    assert advice.endswith("or raise emulation.dilation")
    assert len(f"host busy: {advice}") < 3 * 72, "it stands above narrow screens in three lines"
    for _ in range(18):
        load.add("pi-9", False)
    assert load.text(is_standing=True) is not None, "two of twenty are left"
    assert load.text(is_standing=False) is None
    load.add("pi-9", False)
    assert load.text(is_standing=True) is None


def test_a_disk_is_low_when_the_rounds_to_come_do_not_fit() -> None:
    assert disk_low(50 * GB, 30e6, 160, is_standing=False) is None
    text = disk_low(2 * GB, 30e6, 160, is_standing=False)
    assert text is not None
    assert text.startswith("2.0 GB are free on the disk of the run, enough for about 58 of 160")
    needed = MIN_FREE_BYTES + int(30e6) * 160
    assert disk_low(needed, 30e6, 160, is_standing=False) is None
    assert disk_low(needed, 30e6, 160, is_standing=True) is not None


@pytest.mark.parametrize("per_round", [None, 0.0, 1e6])
def test_a_reserve_must_be_free_whatever_a_run_writes(per_round: float | None) -> None:
    text = disk_low(MIN_FREE_BYTES - 1, per_round, 0, is_standing=False)
    assert text is not None
    assert "needs 250 MB of reserve" in text
    assert disk_low(MIN_FREE_BYTES, per_round, 0, is_standing=False) is None


def test_a_line_names_a_few_devices() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some([str(i) for i in range(7)]) == "0, 1, 2, 3, 4 and 2 more"


NOT_FINITE = None


@pytest.mark.parametrize(
    ("task", "losses", "rounds"),
    [
        ("classification", [2.3, 1.0, 22.9], []),
        ("classification", [2.3, 1.0, 23.1], [3]),
        ("classification", [2.3, 23.1, 11.6, 11.4, 12.0], [2, 3]),
        ("classification", [2.3, NOT_FINITE, 1.0], [2]),
        ("classification", [NOT_FINITE, 50.0, 2.0], [1]),
        ("classification", [NOT_FINITE, NOT_FINITE], [1, 2]),
        ("classification", [119.0, 119.0], []),
        ("classification", [121.0, 59.0], [1]),
        ("regression", [121.0, 1200.0], []),
        ("regression", [121.0, 1211.0], [2]),
        ("regression", [0.0, 1.0], []),
        ("regression", [0.0, NOT_FINITE], [2]),
        ("binary", [], []),
    ],
)
def test_a_model_has_diverged_above_10_times_its_first_loss_until_5_times(
    task: str, losses: list[float | None], rounds: list[int]
) -> None:
    growth = LossGrowth(task)
    found = []
    for round_id, loss in enumerate(losses, start=1):
        growth.add(round_id, loss)
        found += [round_id] if growth.text is not None else []
    assert found == rounds
    pairs = list(enumerate(losses, start=1))
    assert divergence(task, pairs) == growth.divergence
    assert (growth.divergence is None) == (rounds == [])
    resumed = LossGrowth(task, pairs[:1])
    for round_id, loss in pairs[1:]:
        resumed.add(round_id, loss)
    assert resumed.divergence == growth.divergence


def test_the_text_of_a_divergence_has_its_numbers() -> None:
    remedy = (
        "; if x has values far from 1, scale it; otherwise lower training.learning_rate or the "
        "server's, or set training.clip_norm"
    )
    found = divergence("classification", [(1, 2.0), (5, 30.0), (6, 400.0), (7, 50.0)])
    assert found is not None
    assert found.text == (
        "the loss of the global model is 400 (200 times) after round 6; it was above 10 times its "
        f"first value, 2 after round 1, from round 5 on{remedy}"
    )
    over = divergence("classification", [(1, 2.0), (5, 30.0), (6, 1.0)])
    assert over is not None
    assert over.text.endswith(f"from round 5 on, and has recovered{remedy}")
    infinite = divergence("classification", [(1, None)])
    assert infinite is not None
    assert infinite.text == f"the loss of the global model is not finite after round 1{remedy}"
    guess = divergence("classification", [(1, 240.0)])
    assert guess is not None
    assert "is 240 (20 times) after round 1; it was above 10 times the 12 nats of a g" in guess.text
