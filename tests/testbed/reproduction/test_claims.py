"""The verdict of a claim over made-up numbers of each seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fairbed.testbed.reproduction.claims import Judged, RowValues, judged_claims
from fairbed.testbed.reproduction.study import Claim

SEEDS = 8
NOISE = np.array([0.3, -0.2, 0.1, -0.4, 0.25, 0.05, -0.15, 0.05])
"""Of the seeds, mean 0."""


def row(mean: float, noise: float = 1.0, **more: Any) -> RowValues:
    """Return a row whose seeds are around a mean."""
    values = mean + noise * NOISE
    return RowValues(
        dict(enumerate(values.tolist())), more.get("missing", {}), more.get("resolution", 0.0)
    )


def claim(kind: Any = "more", than: Sequence[str] = ("b",), **more: Any) -> Claim:
    """Return a claim about the accuracy of the row a."""
    return Claim(panel="p", metric="average", of="a", kind=kind, than=tuple(than), **more)


def judge(
    claims: Sequence[Claim],
    rows: Mapping[str, RowValues],
    problem: str = "",
    not_comparable: str = "",
) -> list[Judged]:
    return judged_claims(
        claims,
        {("p", "average"): rows},
        {"p": problem} if problem else {},
        {"p": not_comparable} if not_comparable else {},
        [""] * len(claims),
    )


def verdict(one: Claim, *rows: RowValues) -> str:
    found = judge([one], dict(zip("abc", rows, strict=False)))
    return found[0].verdict


FLAT = row(50.0, noise=0.0)


@pytest.mark.parametrize(
    ("kind", "more", "a", "b", "expected"),
    [
        ("more", {}, 52.0, 50.0, "holds"),
        ("more", {}, 48.0, 50.0, "fails"),
        ("more", {}, 50.05, 50.0, "no power"),
        ("less", {}, 48.0, 50.0, "holds"),
        ("less", {}, 52.0, 50.0, "fails"),
        ("not less", {"margin": 1.0}, 49.7, 50.0, "holds"),
        ("not less", {"margin": 1.0}, 48.0, 50.0, "fails"),
        ("not less", {"margin": 1.0}, 49.05, 50.0, "no power"),
        ("within", {"margin": 1.0}, 50.1, 50.0, "holds"),
        ("within", {"margin": 1.0}, 52.0, 50.0, "fails"),
        ("within", {"margin": 1.0}, 48.0, 50.0, "fails"),
        ("within", {"margin": 1.0}, 50.95, 50.0, "no power"),
        ("within", {"margin": 0.05}, 50.0, 50.0, "no power"),
    ],
)
def test_a_claim_holds_or_fails_where_the_seeds_show_it(
    kind: str, more: dict[str, Any], a: float, b: float, expected: str
) -> None:
    assert verdict(claim(kind, **more), row(a), row(b, noise=0.0)) == expected


def test_a_claim_about_a_bound_needs_no_other_row() -> None:
    assert verdict(claim("below", (), bound=3.0), row(2.0)) == "holds"
    assert verdict(claim("below", (), bound=3.0), row(4.0)) == "fails"
    assert verdict(claim("below", (), bound=3.0), row(2.95)) == "no power"
    assert verdict(claim("within", (), margin=1.0), row(0.1)) == "holds"


def test_the_effect_of_a_seed_cancels() -> None:
    a, b = row(51.0, noise=20.0), row(50.0, noise=20.0)
    assert verdict(claim(), a, b) == "holds"


def test_a_claim_about_several_rows_holds_for_each_or_fails_for_one() -> None:
    best = claim(than=("b", "c"))
    assert verdict(best, row(52.0), FLAT, row(49.0, noise=0.0)) == "holds"
    assert verdict(best, row(50.05), FLAT, row(40.0, noise=0.0)) == "no power"
    assert verdict(best, row(50.0), row(40.0, noise=0.0), row(52.0, noise=0.0)) == "fails"
    (found,) = judge([best], {"a": row(50.0), "b": FLAT, "c": row(52.0, noise=0.0)})
    assert found.against == "c"
    assert found.mean == pytest.approx(-2.0)


def test_fewer_than_six_seeds_have_no_power_however_clear_they_are() -> None:
    few = RowValues(dict.fromkeys(range(5), 90.0), {}, 0.0)
    none = RowValues(dict.fromkeys(range(5), 10.0), {}, 0.0)
    (found,) = judge([claim()], {"a": few, "b": none})
    assert (found.verdict, found.p, found.mean) == ("no power", None, 80.0)
    assert found.reason == "a verdict needs 6 seeds, got 5"


def test_a_metric_that_a_seed_lacks_is_not_judged() -> None:
    (found,) = judge([claim()], {"a": row(60.0), "b": row(50.0, missing={7: "a loss is above M"})})
    assert (found.verdict, found.p) == ("no judgement", None)
    assert found.reason == "b, seed 7: a loss is above M"


def test_without_data_or_without_a_common_setting_numbers_decide_nothing() -> None:
    rows = {"a": row(60.0), "b": FLAT}
    (absent,) = judge([claim()], rows, problem="adult: no file", not_comparable="another model")
    assert (absent.verdict, absent.reason) == ("not run: no data", "adult: no file")
    (other,) = judge([claim()], rows, not_comparable="another model")
    assert (other.verdict, other.reason, other.p) == ("not comparable", "another model", None)
    assert other.mean == pytest.approx(10.0), "the numbers are shown"


def test_all_claims_of_a_source_are_one_family() -> None:
    weak = row(50.25)  # p = 0.02 alone
    alone = judge([claim()], {"a": weak, "b": FLAT})
    assert alone[0].verdict == "holds"
    many = judge([claim()] * 4, {"a": weak, "b": FLAT})
    assert {one.verdict for one in many} == {"no power"}
    assert many[0].p == alone[0].p
    assert many[0].p_family == pytest.approx(4.0 * (many[0].p or 0.0))


def test_secondary_claims_take_a_fifth_of_the_level() -> None:
    claims = [claim(), *[claim(is_primary=False)] * 3]
    weak = row(50.25)
    first, *rest = judge(claims, {"a": weak, "b": FLAT})
    assert first.verdict == "holds"
    assert first.p_family == pytest.approx((first.p or 0.0) / 0.8)
    assert {one.verdict for one in rest} == {"no power"}


def test_equal_seeds_do_not_show_more_than_one_example_can() -> None:
    """Eight equal differences of 0.1 % are no certainty where one example is 1 %."""
    close, other = row(50.1, noise=0.0, resolution=1.0), row(50.0, noise=0.0, resolution=1.0)
    assert verdict(claim(), close, other) == "no power"
    fine = row(50.1, noise=0.0)
    assert verdict(claim(), fine, FLAT) == "holds"


def test_a_claim_without_power_states_what_the_seeds_could_show() -> None:
    (found,) = judge([claim()], {"a": row(50.05), "b": FLAT})
    deviation = NOISE.std(ddof=1)
    assert found.smallest is not None
    assert 1.0 * deviation < found.smallest < 1.3 * deviation  # 1.16 deviations with 8 seeds
