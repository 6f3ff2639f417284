"""The benchmark of the context check: honest fleets of any kind, and fleets with liars."""

import msgspec
import pytest

from benchmarks import context_check
from fairbed.testbed.errors import UsageError


@pytest.mark.parametrize(("kind", "fleets"), [("constant", 3), ("mixed", 3), ("traces", 2)])
def test_no_honest_device_of_a_drawn_fleet_is_suspected(kind: str, fleets: int) -> None:
    row = context_check.Row(kind=kind)
    for seed in range(fleets):
        context_check.count(row, context_check.draw(kind, seed, rounds=40))
    assert (row.fleets, row.suspected, row.liars) == (fleets, 0, 0)
    assert row.judged >= 0.5 * row.long > 0


def test_a_row_counts_liars_and_their_delay(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kinds", "liars", "--fleets", "2", "--rounds", "30", "--json"]
    assert context_check.main(arguments) == 0
    [row] = msgspec.json.decode(capsys.readouterr().out, type=list[context_check.Row])
    assert row.fleets == 2
    assert row.liars >= row.found == len(row.delays) > 0
    assert min(row.delays) >= 3
    assert row.suspected == 0


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^bench context-check: kinds must be among constant, "):
        context_check.main(["--kinds", "any"])
