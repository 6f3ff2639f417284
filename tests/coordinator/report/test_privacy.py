"""epsilon of local noise: worked numbers, the closed form, and what a summary states."""

import math
import sys
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import pld
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from fairbed.coordinator.report.privacy import AccountantMissingError, epsilon
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import ReleaseRow
from tests.coordinator.store.fake_run import FEDAVG, FakeRun

DELTA = 1e-5
PRIVATE = f"{FEDAVG}[privacy]\nclip = 0.5\nnoise_multiplier = 2.0\ndelta = 1e-5\n"


def closed_form(mu: float, delta: float) -> float:
    """Return epsilon of mu-Gaussian privacy (Dong et al., 2022, Corollary 2.13).

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)
    """

    def excess(e: float) -> float:
        first, second = stats.norm.cdf(-e / mu + mu / 2), stats.norm.logcdf(-e / mu - mu / 2)
        return float(first - math.exp(e + second)) - delta

    return float(optimize.brentq(excess, 0.0, 1e3, xtol=1e-12))


@pytest.mark.parametrize(
    ("noise_multiplier", "releases", "expected"),
    [
        # Updates of a device differ by at most 2 clips, so 2 is sigma = 1 of a Gaussian mechanism.
        (2.0, 1, 4.377178),
        (2.0, 10, 17.856587),
        (1.0, 1, 9.997256),
        (1.0, 10, 46.211210),
        (20.0, 10, 1.199370),
    ],
)
def test_epsilon_of_worked_examples(
    noise_multiplier: float, releases: int, expected: float
) -> None:
    found = epsilon(noise_multiplier, releases, DELTA)
    assert found == pytest.approx(expected, abs=1e-6)
    mu = 2.0 * math.sqrt(releases) / noise_multiplier
    assert found == pytest.approx(closed_form(mu, DELTA), abs=1e-8)


@pytest.mark.full
@pytest.mark.parametrize("releases", [1, 10])
def test_epsilon_is_that_of_the_accountant_that_composes_one_by_one(releases: int) -> None:
    accountant = pld.PLDAccountant()
    for _ in range(releases):
        accountant.compose(dp_accounting.GaussianDpEvent(1.0))
    # The accountant rounds privacy losses up to multiples of 1e-4.
    assert epsilon(2.0, releases, DELTA) == pytest.approx(accountant.get_epsilon(DELTA), abs=2e-3)


@given(st.floats(0.05, 50.0), st.integers(1, 10_000))
def test_more_updates_and_less_noise_cost_more(noise_multiplier: float, releases: int) -> None:
    found = epsilon(noise_multiplier, releases, DELTA)
    assert 0.0 <= found < epsilon(noise_multiplier, 2 * releases, DELTA) < math.inf
    # Twice the noise, four times the updates: the same mechanism.
    assert epsilon(2 * noise_multiplier, 4 * releases, DELTA) == pytest.approx(found, rel=1e-6)


def test_a_device_that_sent_nothing_has_lost_nothing() -> None:
    assert epsilon(1.0, 0, DELTA) == 0.0


def test_the_table_of_the_page_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "privacy.md").read_text(encoding="utf-8")
    counts = (1, 10, 100)
    for z in (1, 2, 8, 20):
        cells = [str(z), *(f"{epsilon(float(z), releases, DELTA):.3g}" for releases in counts)]
        assert f"| {' | '.join(cells)} |" in page


def private_run(folder: Path) -> tuple[Path, list[str]]:
    """Return a run in which three devices have sent 3, 1 and 0 updates, and their names."""
    run = FakeRun(folder, rounds=3, aggregation=PRIVATE)
    run.play(3)
    run.store.flush()
    with RunReader(folder) as reader:
        names = [device.name for device in reader.devices()][:3]
    sent = [(1, 0, 0, True), (2, 0, 0, True), (2, 1, 0, True), (3, 0, 1, True), (3, 0, 2, False)]
    for round_id, attempt, at, is_released in sent:
        run.store.add(
            ReleaseRow(round=round_id, attempt=attempt, device=names[at], is_released=is_released)
        )
    return run.finish(), names


def test_the_summary_counts_the_updates_that_left_each_device(tmp_path: Path) -> None:
    folder, names = private_run(tmp_path / "r")
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
    p = summary.privacy
    assert p is not None
    assert (p.releases, p.releases_most, p.note) == (4, 3, "")
    assert p.epsilon_max == pytest.approx(closed_form(math.sqrt(3), DELTA), abs=1e-8)
    found = {d.name: (d.releases, d.epsilon) for d in summary.fleet if d.name in names}
    one = pytest.approx(closed_form(1.0, DELTA), abs=1e-8)
    assert found == dict(zip(names, [(3, p.epsilon_max), (1, one), (0, 0.0)], strict=True))
    (line,) = [x for x in summary_table(summary).splitlines() if x.startswith("privacy")]
    assert line == (
        "privacy    epsilon at most 8.39 for delta 1e-05 and the updates of one device, of which "
        "at most 3 left it; noise 2 x clip 0.5; not covered: counts, times, contexts"
    )


def test_without_the_accountant_the_summary_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epsilon.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(AccountantMissingError, match="dp-accounting, got none; install it: uv pip"):
        epsilon(2.0, 1, DELTA)
    folder, _ = private_run(tmp_path / "r")
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
    assert summary.privacy is not None
    assert (summary.privacy.releases, summary.privacy.epsilon_max) == (4, None)
    assert {d.epsilon for d in summary.fleet} == {None}
    assert "epsilon unknown for delta" in summary_table(summary)
    assert "uv pip install 'fairbed[privacy]'" in summary_table(summary)


def test_a_run_without_noise_has_no_epsilon(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "r", rounds=3)
    run.play(3)
    with RunReader(run.finish()) as reader:
        summary = summarise_run(reader)
    assert summary.privacy is None
    assert {(d.releases, d.epsilon) for d in summary.fleet} == {(None, None)}
    assert "privacy" not in summary_table(summary)
