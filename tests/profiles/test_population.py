"""Populations: drawn devices have the published distributions and correlations."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairbed import profiles
from fairbed.profiles import Population, Profile, ProfileError
from fairbed.profiles.population import AvailabilityPopulation, Distributed
from fairbed.profiles.quantities import Quantiles, Quantity, normal_shares
from fairbed.profiles.sampling import columns, draw
from tests.tiers import examples

SHIPPED = profiles.population_names()
TEXT = profiles.find("phones-2025").read_text(encoding="utf-8")


def drawn(population: Population, count: int, seed: int = 0) -> list[Profile]:
    return profiles.sample(population, count, np.random.Generator(np.random.PCG64(seed)))


def value(device: Profile, key: str) -> float:
    found = msgspec.to_builtins(device)
    for step in key.split("."):
        found = found[step]
    return float(found["value"])


@pytest.mark.parametrize("name", SHIPPED)
def test_the_marginals_of_drawn_devices_are_the_published_quantiles(name: str) -> None:
    population = profiles.load_population(name)
    devices = drawn(population, 2000)
    for key, number in population.numbers().items():
        values = np.array([value(device, key) for device in devices])
        for share, x in number.quantiles or ():
            at_most = np.mean(values <= x * (1 + 1e-9))
            below = np.mean(values < x * (1 - 1e-9))
            assert below - 0.035 <= share <= at_most + 0.035, (key, share, x)


@pytest.mark.parametrize("name", SHIPPED)
def test_numbers_are_correlated_as_published(name: str) -> None:
    population = profiles.load_population(name)
    keys = list(population.numbers())
    values, _ = draw(population, 4000, np.random.Generator(np.random.PCG64(1)))
    for correlation in population.correlations:
        ranks = [values[:, keys.index(key)].argsort().argsort() for key in correlation.of]
        found = np.corrcoef(ranks[0], ranks[1])[0, 1]
        assert found == pytest.approx(correlation.rank.value, abs=0.05)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 32), st.integers(0, 20), st.integers(0, 20))
def test_the_same_seed_draws_the_same_and_fewer_are_the_first_of_more(
    seed: int, count: int, more: int
) -> None:
    population = profiles.load_population("phones-2025")
    assert drawn(population, count + more, seed)[:count] == drawn(population, count, seed)


@pytest.mark.parametrize("name", SHIPPED)
def test_columns_are_the_numbers_of_the_devices_drawn_one_by_one(name: str) -> None:
    population = profiles.load_population(name)
    drawn_columns = columns(population, 300, np.random.Generator(np.random.PCG64(5)))
    devices = drawn(population, 300, seed=5)
    assert list(drawn_columns) == list(population.numbers())
    for key, column in drawn_columns.items():
        assert column.tolist() == [value(device, key) for device in devices], key


@st.composite
def quantiles(draw: st.DrawFn) -> tuple[tuple[float, float], ...]:
    count = draw(st.integers(1, 6))
    shares = draw(st.lists(st.integers(0, 20), min_size=count, max_size=count, unique=True))
    steps = draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
    values = np.cumsum([1, *steps[1:]]) / 10.0
    return tuple((s / 20.0, float(v)) for s, v in zip(sorted(shares), values, strict=True))


@settings(max_examples=examples(25), deadline=None)
@given(quantiles(), st.integers(0, 1 << 32))
def test_any_published_quantiles_are_those_of_the_devices(
    points: tuple[tuple[float, float], ...], seed: int
) -> None:
    shipped = profiles.load_population("phones-fedscale")
    speed = msgspec.structs.replace(shipped.core_speed, quantiles=points)
    population = msgspec.structs.replace(shipped, core_speed=speed)
    values, _ = draw(population, 1500, np.random.Generator(np.random.PCG64(seed)))
    speeds = values[:, list(population.numbers()).index("core_speed")]
    assert speeds.min() >= points[0][1]
    assert speeds.max() <= points[-1][1]
    for share, x in points:
        assert np.mean(speeds <= x + 1e-9) >= share - 0.07
        assert np.mean(speeds < x - 1e-9) <= share + 0.07


def test_the_source_of_a_drawn_number_states_its_share() -> None:
    device = drawn(profiles.load_population("phones-2025"), 1)[0]
    assert device.name == "phones-2025"
    assert "% of phones-2025: CPU float scores" in device.one_core.source
    assert not device.core_count.source.startswith("drawn")


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^count must be >= 0, got -1"):
        drawn(profiles.load_population("phones-2025"), -1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[0.05, 0.0943]", "[0.05, 0.01]", "values must not decrease, got 0.01 after 0.0259"),
        ("[0.05, 0.0943]", "[0.01, 0.0943]", "shares must increase, got 0.01 after 0.01 at point"),
        ("[0.05, 0.0943]", "[0.05, -1.0]", "core_speed.quantiles[1][1]: must be float > 0.0, got"),
        ("cores = { value = 8,", "cores = {", "cores: must have either value or quantiles, got ne"),
        ('["link.down_bps", "link.up_bps"]', '["link.down_bps", "speed"]', "got 'speed'"),
        ('["link.down_bps", "link.up_bps"]', '["cores", "cores"]', "got cores twice"),
        ("value = 0.45", "value = 1.5", "must be float < 1.0, got 1.5"),
        ("[link.delay_s]", "[link.latency]", "link: must not have the key latency"),
    ],
)
def test_a_bad_population_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ProfileError) as caught:
        profiles.load_population(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert profiles.check(path)[0] in str(caught.value)


def test_contradictory_correlations_are_refused(tmp_path: Path) -> None:
    rank = 'rank = { value = %s, tag = "literature", source = "made up" }\n'
    pairs = (("cores", "core_speed", 0.9), ("core_speed", "memory_bytes", 0.9))
    text = TEXT.split("[[correlations]]")[0]
    for one, other, value_ in (*pairs, ("cores", "memory_bytes", -0.9)):
        text += f'[[correlations]]\nof = ["{one}", "{other}"]\n{rank % value_}'
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError, match="correlations must be possible together"):
        profiles.load_population(path)


def test_check_detects_a_link_and_a_population_by_their_keys(tmp_path: Path) -> None:
    for name in ("phones-2025", "lte-driving", "raspberry-pi-3b"):
        path = tmp_path / f"{name}.toml"
        path.write_text(profiles.find(name).read_text(encoding="utf-8"), encoding="utf-8")
        assert profiles.check(path) == []


def test_quantiles_are_linear_between_points() -> None:
    quantiles = Quantiles(((0.25, 1.0), (0.75, 3.0)))
    assert quantiles.at(np.array([0.0, 0.25, 0.5, 1.0])).tolist() == [1.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ((), "must have at least one point"),
        (((1.5, 0.0),), "shares must be from 0 to 1, got 1.5 at point 0"),
        (((0.5, float("nan")),), "values must be finite, got nan at point 0"),
    ],
)
def test_bad_quantiles_are_refused(points: tuple[tuple[float, float], ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Quantiles(points)


def test_normal_shares_are_those_of_the_normal_distribution() -> None:
    shares = normal_shares(np.array([-1.959964, 0.0, 1.281552]))
    np.testing.assert_allclose(shares, [0.025, 0.5, 0.9], atol=1e-6)


def test_a_drawn_device_keeps_the_session_length_of_its_population() -> None:
    population = profiles.load_population("phones-2025")
    session = Quantity(value=900.0, tag="literature", source="made up")
    stays = AvailabilityPopulation(
        available=Distributed(value=0.2, tag="measured", source="made up"), session_s=session
    )
    (device,) = drawn(msgspec.structs.replace(population, availability=stays), 1)
    assert device.availability is not None
    assert device.availability.session == session
