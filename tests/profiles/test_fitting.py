"""Links fitted to drives: the fit finds what was drawn, and its links draw what was recorded."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed import profiles
from fairbed.profiles.fitting import (
    NotFitted,
    coupling_of,
    fit_direction,
    states_of,
)
from fairbed.profiles.quantities import Episodes, Floats, Quantity, Spread, Varying
from fairbed.profiles.schema import Link
from fairbed.profiles.tracks import device_tracks, draw_rates, draw_spread

RATES = ((0.0, 1e6), (0.25, 8e6), (0.5, 20e6), (0.75, 45e6), (1.0, 120e6))


def link(outages: Episodes | None = None) -> Link:
    spread: Spread[float] = Spread(
        quantiles=RATES, step_s=1.0, correlation=0.6, drive=0.3, slow=0.4, slow_s=50.0
    )
    rate: Varying[float, float] = Varying(
        value=20e6, tag="measured", source="invented", spread=spread
    )
    return Link(down=rate, up=rate, outages=outages)


def episodes(every_s: float, *, drive: float = 0.0, ratio: float = 0.0) -> Episodes:
    return Episodes(
        value=every_s,
        tag="measured",
        source="invented",
        length_s=((0.0, 4.0), (0.5, 10.0), (1.0, 40.0)),
        drive=drive,
        rate_ratio=ratio,
    )


def drives(of: Link, count: int, seed: int = 3) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [np.array(draw_rates(of, rng)[0].values) for _ in range(count)]


def test_a_fit_finds_the_process_that_was_drawn() -> None:
    drawn = drives(link(outages=episodes(150.0, drive=0.8)), 30)
    found = fit_direction(drawn, 1.0, "measured", "a test")
    zeros = float(np.mean(np.concatenate(drawn) == 0.0))
    assert found.outages is not None
    assert found.zero_share == pytest.approx(zeros)
    assert found.outages.value == pytest.approx(150.0, rel=0.35)
    assert found.outages.lengths().at(0.5) == pytest.approx(10.0, abs=2.0)
    assert 0.5 <= found.outages.drive <= 1.3
    assert found.spread.drive == pytest.approx(0.3, abs=0.12)
    assert found.spread.distribution().at(0.5) == pytest.approx(20e6, rel=0.35)


def test_drawn_links_have_the_zeros_of_the_drives_in_both_directions() -> None:
    fitted = fit_direction(drives(link(outages=episodes(60.0)), 12), 1.0, "measured", "a test")
    again = Link(down=link().down, up=link().up, outages=fitted.outages)
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(60):
        down, up = draw_rates(again, rng)
        assert np.array_equal(np.array(down.values) == 0.0, np.array(up.values) == 0.0)
        shares.append(np.mean(np.array(down.values) == 0.0))
    assert np.mean(shares) == pytest.approx(fitted.zero_share, abs=0.03)


def test_a_degraded_link_has_a_share_of_its_rates() -> None:
    spread: Spread[float] = Spread(quantiles=((0.5, 10e6),), step_s=1.0, correlation=0.0)
    rate: Varying[float, float] = Varying(
        value=10e6, tag="measured", source="invented", spread=spread
    )
    of = Link(down=rate, up=rate, degraded=episodes(100.0, ratio=0.1))
    down, _ = draw_rates(of, np.random.default_rng(1))
    assert set(down.values) == {1e6, 10e6}
    states = states_of(np.array(down.values), 1.0)
    assert np.mean(states.is_degraded == (np.array(down.values) == 1e6)) > 0.95
    assert not states.is_none.any()


def test_rates_of_both_directions_are_coupled() -> None:
    coupled = msgspec.structs.replace(
        link(), coupling=Quantity(value=0.8, tag="measured", source="invented")
    )
    rng = np.random.default_rng(2)
    pairs = [tuple(np.array(s.values) for s in draw_rates(coupled, rng)) for _ in range(40)]
    assert coupling_of([(down, up) for down, up in pairs]) == pytest.approx(0.8, abs=0.08)


def test_devices_keep_their_part_of_the_variance() -> None:
    spread = link().down.spread
    assert spread is not None
    rng = np.random.default_rng(4)
    medians = [np.median(draw_spread(spread, rng).values) for _ in range(60)]
    alone = msgspec.structs.replace(spread, drive=0.0, slow=0.0)
    alike = [np.median(draw_spread(alone, rng).values) for _ in range(60)]
    assert np.std(np.log(medians)) > 4.0 * np.std(np.log(alike))


def test_seeds_fix_a_link_and_runs_share_it_with_replays() -> None:
    of = link(outages=episodes(150.0, drive=0.8))

    def tracks(seed: int) -> object:
        return device_tracks(None, of, lambda *_: None, np.random.default_rng(seed)).link  # type: ignore[arg-type]

    assert tracks(1) == tracks(1)
    assert tracks(1) != tracks(2)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("outage_every_s.rate_ratio = 0.5", "outage_every_s.rate_ratio: must be 0, got 0.5"),
        ("down_bps.spread.drive = 0.9", "shares of one variance"),
        ("outage_every_s.length_s = [[0.0, 9.0], [1.0, 3.0]]", "values must not decrease"),
        ("outage_every_s.drive = 9", "must be"),
    ],
)
def test_numbers_that_no_link_has_are_refused_with_one_line(
    lines: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.toml"
    raw = profiles.to_toml(
        profiles.LinkProfile(
            name="x",
            title="a link",
            licence="invented",
            link=msgspec.structs.replace(
                link(outages=episodes(150.0)),
                delay=Varying(value=0.01, tag="measured", source="invented"),
            ),
        )
    )
    file.write_text(raw)
    assert profiles.check(file) == []
    key, _, value = lines.partition(" = ")
    table, _, name = key.rpartition(".")
    old = next(
        line
        for line in raw.partition(f"[link.{table}]")[2].splitlines()
        if line.startswith(f"{name} = ")
    )
    head, mark, tail = raw.partition(f"[link.{table}]")
    rest = tail.partition(old)
    if name == "length_s":
        rest = (rest[0], "", rest[2].partition("\n]")[2])
    file.write_text(f"{head}{mark}{rest[0]}{name} = {value}{rest[2]}")
    (line,) = profiles.check(file)
    assert problem in line


def test_states_exclude_a_trace() -> None:
    traced: Varying[float, float] = Varying(
        value=1e6, tag="measured", source="invented", trace="ride.csv"
    )
    with pytest.raises(ValueError, match="must not be given beside rates of a series or a trace"):
        Link(down=traced, outages=episodes(100.0))


def test_drives_without_coverage_are_refused() -> None:
    with pytest.raises(NotFitted, match="needs at least 20 steps with coverage, got 0"):
        fit_direction([np.zeros(600)], 1.0, "measured", "a test")


def test_the_command_writes_a_link_that_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fairbed.testbed.cli.main import main

    rows = ["trace,t_s,down_mbps,up_mbps"]
    rng = np.random.default_rng(5)
    for name in ("a", "b", "c"):
        down, up = draw_rates(link(outages=episodes(100.0)), rng)
        for t, (x, y) in enumerate(zip(down.values[:600], up.values[:600], strict=True)):
            rows.append(f"{name},{t},{x / 1e6:.4f},{y / 1e6:.4f}")
    file = tmp_path / "city.csv"
    file.write_text("\n".join([*rows, ""]))
    options = ["--split", "trace", "--name", "city", "--delay", "20ms", "--to", str(tmp_path)]
    assert main(["profiles", "fit", str(file), *options]) == 0
    found = profiles.load_link(tmp_path / "city.toml").link
    assert found.outages is not None
    assert found.down.spread is not None
    assert "down: 3 drives, 1800 s" in capsys.readouterr().out
    plain = [*options, "--no-states", "down", "--no-states", "up", "--force"]
    assert main(["profiles", "fit", str(file), *plain]) == 0
    whole = profiles.load_link(tmp_path / "city.toml").link
    assert (whole.outages, whole.degraded) == (None, None)
    assert whole.down.spread is not None
    assert whole.down.spread.quantiles[0] == (0.0, 0.0), "no coverage is a rate"
    assert main(["profiles", "fit", str(file), *options, "--down", "z*", "--force"]) == 2
    assert "--down: must match a drive, got 'z*'; there are a, b, c" in capsys.readouterr().err


DATA = Path(os.environ.get("FAIRBED_DATA", "nowhere"))
needs_data = pytest.mark.skipif(
    not (DATA / "traces" / "us_drives_2023.csv.xz").is_file(),
    reason="needs the published drives: FAIRBED_DATA is not set",
)


@needs_data
@pytest.mark.parametrize(
    ("name", "draws"), [("verizon", 30), ("tmobile", 30), ("new-york", 16), ("umts-up", 30)]
)
def test_fitted_links_have_the_statistics_of_their_drives(name: str, draws: int) -> None:
    from benchmarks.link_processes import SETS, compared, drives_of

    rows = compared(name, drives_of(SETS[name], DATA), 1.0, draws)
    assert [row for row in rows if row.ok is False] == []
    assert sum(row.ok is True for row in rows) >= 8


@needs_data
@pytest.mark.parametrize("link", ["starlink-us-roam", "lte-city", "3g"])
def test_a_shipped_link_is_what_the_command_fits(link: str, tmp_path: Path) -> None:
    from tools.fit_links import LINKS, fit_one

    fit_one(link, DATA / "traces", tmp_path)
    name = f"{link}.toml"
    assert (tmp_path / name).read_text() == (LINKS / name).read_text()
