"""The audit of a store accepts a correct run, and finds each kind of damage."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest

from benchmarks._chaos.audit import RoundRows, StoreAudit
from fairbed.coordinator.store import RunReader
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment

EXPERIMENT = """
name = "audited"
rounds = 6
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
policy = "rbcs-f"
per_round = 2
beta = 0.2
[[fleet]]
name = "pi"
profile = "raspberry-pi-4b"
count = 4
"""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[RoundRows]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "audited.toml").write_text(EXPERIMENT)
    experiment = load_experiment(folder / "audited.toml")
    replay_experiment(experiment, folder / "run", "run", lambda replayed: None)
    with RunReader(folder / "run") as reader:
        return [
            RoundRows(row, reader.selections(row.round), reader.exchanges(row.round - 1, row.round))
            for row in reader.rounds()
        ]


def problems(rounds: list[RoundRows]) -> list[str]:
    audit = StoreAudit(beta=0.2)
    return [text for rows in rounds for text in audit.check_next(rows)]


def damaged(rounds: list[RoundRows], damage: Callable[[RoundRows], RoundRows]) -> list[str]:
    """Return the problems of a run whose fourth round is damaged."""
    return problems([damage(rows) if rows.round.round == 4 else rows for rows in rounds])


T = TypeVar("T")


def first(rows: Sequence[T], **changes: object) -> list[T]:
    """Return the rows with changes of the first one."""
    return [replace(rows[0], **changes), *rows[1:]]  # type: ignore[type-var]  # rows are dataclasses


def test_a_correct_run_has_no_problems(rounds: list[RoundRows]) -> None:
    assert len(rounds) == 6
    assert problems(rounds) == []


def test_a_lost_round_is_found(rounds: list[RoundRows]) -> None:
    assert "round 5: must follow round 3" in problems([*rounds[:3], *rounds[4:]])


def test_a_lost_exchange_is_found(rounds: list[RoundRows]) -> None:
    found = damaged(rounds, lambda one: replace(one, exchanges=one.exchanges[1:]))
    assert any("each selected device must have one exchange" in text for text in found)


def test_an_exchange_that_is_counted_twice_is_found(rounds: list[RoundRows]) -> None:
    found = damaged(rounds, lambda one: replace(one, exchanges=[*one.exchanges, one.exchanges[0]]))
    assert any("each aggregated update must be counted once" in text for text in found)
    assert any("weight shares must sum to 1" in text for text in found)


def test_an_update_of_another_round_is_found(rounds: list[RoundRows]) -> None:
    late = {"aggregated_round": 3}
    found = damaged(rounds, lambda one: replace(one, exchanges=first(one.exchanges, **late)))
    assert any("of a done exchange of this round" in text for text in found)


def test_a_wrong_queue_is_found_once(rounds: list[RoundRows]) -> None:
    before = rounds[3].selections[0].queue
    found = damaged(
        rounds, lambda one: replace(one, selections=first(one.selections, queue=before + 0.3))
    )
    assert [text for text in found if text.startswith("round 4: queue of ")]
    assert any(text.startswith("round 4: queue_total must be the sum") for text in found)


def test_a_device_without_a_row_is_found(rounds: list[RoundRows]) -> None:
    found = damaged(rounds, lambda one: replace(one, selections=one.selections[1:]))
    assert any("selection rows must name every device" in text for text in found)


def test_a_clock_that_goes_back_is_found(rounds: list[RoundRows]) -> None:
    row = replace(rounds[3].round, closed_at_s=0.1, dispatched_at_s=0.05)
    assert any(
        "must not go back" in t for t in damaged(rounds, lambda one: replace(one, round=row))
    )


def test_closed_rounds_must_stay(rounds: list[RoundRows]) -> None:
    audit = StoreAudit(beta=0.2)
    for rows in rounds:
        audit.check_next(rows)
    closed = [rows.round for rows in rounds]
    assert audit.check_kept(closed) == []
    assert audit.check_kept(closed[:-1]) == ["round 6: must stay as it was closed, is lost"]
    again = replace(closed[2], closed_at_s=closed[2].closed_at_s + 1.0)
    (text,) = audit.check_kept([*closed[:2], again, *closed[3:]])
    assert text.startswith("round 3: must stay as it was closed, is closed at")
