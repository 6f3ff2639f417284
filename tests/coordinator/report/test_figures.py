"""Figures of runs: what they draw, what they leave out, and equal bytes for equal data."""

import os
import re
import sqlite3
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbed.coordinator.policy.live_settings import Change
from fairbed.coordinator.report.errors import NoFigureError
from fairbed.coordinator.report.figures import (
    FIGURES,
    THEME,
    RunFigures,
    draw,
    figure_bytes,
    inline_svg,
    read_figures,
    selection,
    why_missing,
    write_figures,
)
from fairbed.coordinator.report.figures.data import Choices
from fairbed.coordinator.report.figures.exchanges import parts_of, problems_of, valid_times
from fairbed.coordinator.report.figures.model import time_unit
from fairbed.coordinator.report.figures.panels import shown
from fairbed.coordinator.report.figures.selection import final_rates, heat_map, rates_over_rounds
from fairbed.coordinator.store import RunReader, replication
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.reader import TIMED_PHASES
from fairbed.wire.printable import printable
from tests.coordinator.store.fake_run import LATE_ROUND, VOID_ROUND, FakeRun, fake_run, make_store

pytest.importorskip("matplotlib", reason="figures need matplotlib")


def read(folder: Path) -> RunFigures:
    with RunReader(folder) as reader:
        return read_figures(reader)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = FakeRun(tmp_path_factory.mktemp("runs") / "run-1", watts=3.0)
    made.play(30)
    return made.finish()


@pytest.fixture(scope="module")
def run(folder: Path) -> RunFigures:
    points = np.array([[1.0, 2.0, 3.0], [0.5, 0.6, 0.7], [0.4, 0.5, 0.6], [0.6, 0.7, 0.8]])
    metrics = {("fit", "cost in $ & _x_"): points, ("evaluate", "accuracy"): points}
    return replace(read(folder), client_metrics=metrics)


_NONE, _NOTHING = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
BLANK = RunFigures(
    run_id="blank",
    name="blank",
    policy="uniform",
    seed=1,
    beta=None,
    queue_counts="selected",
    changes=(),
    devices=(),
    profiles=(),
    n_all=0,
    rounds={},
    metrics={},
    exchanges={},
    exchange_device=_NONE,
    outcome=(),
    choices=Choices(
        first=_NONE,
        at=_NONE,
        device=_NONE,
        is_selected=_NOTHING,
        is_aggregated=_NOTHING,
        is_available=_NOTHING,
        since=0,
        selected_before=_NONE,
        aggregated_before=_NONE,
        knows_availability=True,
    ),
    score="accuracy",
    loss_unit="nats",
    scores=np.zeros(0),
    personal_scores=np.zeros(0),
    queues={},
    min_rates=None,
)
"""A run without data."""


def test_the_same_data_give_the_same_bytes(run: RunFigures, tmp_path: Path) -> None:
    names = ("rates", "selection")
    first, again = (
        [path.read_bytes() for path in write_figures([run], tmp_path / part, names)]
        for part in ("first", "again")
    )
    assert len(first) == 4
    assert first == again


@pytest.mark.parametrize("what", FIGURES)
def test_an_inline_figure_has_the_colours_of_the_page_and_its_own_names(
    run: RunFigures, what: str
) -> None:
    assert why_missing(what, [run]) is None
    svg = inline_svg(what, [run])
    ElementTree.fromstring(svg)
    assert 'role="img"' in svg
    assert f"<title>{FIGURES[what].title}</title>" in svg
    names = re.findall(r' id="([^"]+)"', svg)
    used = set(re.findall(r"url\(#([^)]+)\)", svg)) | set(re.findall(r'href="#([^"]+)"', svg))
    assert used == set(names)
    assert all(name.startswith(f"{what}-") for name in names)
    without_images = re.sub(r"data:image[^\"]+", "", svg)
    outside = re.sub(r"var\((--[a-z0-9-]+),#\w+\)", r"\1", without_images)
    assert set(re.findall(r"--[a-z][a-z0-9-]+", outside)) <= set(THEME)
    fixed = set(re.findall(r"(?:fill|stroke): ?(#\w+)", outside))
    assert fixed <= ({"#1478be", "#dc960a", "#808080"} if what == "selection" else set())


def test_an_unknown_figure_lists_the_known_ones(run: RunFigures) -> None:
    with pytest.raises(NoFigureError, match=r"must be one of accuracy, .*, got 'acuracy'"):
        inline_svg("acuracy", [run])


def test_an_empty_run_has_no_figure_and_a_reason_for_each(tmp_path: Path) -> None:
    make_store(tmp_path / "run").close()
    empty = read(tmp_path / "run")
    assert {why_missing(what, [empty]) for what in FIGURES} == {"no round has closed yet"}
    assert write_figures([empty], tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()


@pytest.mark.full
def test_another_process_draws_the_same_bytes(run: RunFigures, tmp_path: Path) -> None:
    fake_run(tmp_path / "run", rounds=3, devices=3)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from fairbed.coordinator.report.figures import read_figures, write_figures\n"
        "from fairbed.coordinator.store import RunReader\n"
        "with RunReader(Path('run')) as reader: found = read_figures(reader)\n"
        "write_figures([found], Path(sys.argv[1]), ('rates', 'selection'))\n"
    )
    files = []
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": f"{seed}000000"}
        command = [sys.executable, "-c", code, seed]
        subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=60)
        files.append({path.name: path.read_bytes() for path in (tmp_path / seed).iterdir()})
    assert len(files[0]) == 4
    assert files[0] == files[1]


def test_one_round_has_no_curve_and_no_empty_panel(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    one = read(fake_run(tmp_path / "run", rounds=1))
    reasons = {what: why_missing(what, [one]) for what in FIGURES}
    assert {what for what, reason in reasons.items() if reason} == {
        *("accuracy", "accuracy-time", "loss", "queues", "phases", "devices", "estimator"),
        *("contention", "energy", "client"),
    }
    assert reasons["phases"] == "4 of 4 exchanges are timed, fewer than 5"
    assert reasons["queues"] == "a curve needs two rounds, got 1"
    assert reasons["accuracy"] == "a curve needs two evaluations of the accuracy, got 1"
    figure = Figure()
    for what in ("rates", "fairness"):
        draw(what, [one], figure)
        assert len(figure.axes) == 1
        figure.clear()


def test_devices_with_too_few_timed_exchanges_are_left_out(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    four = read(fake_run(tmp_path / "run", rounds=12))
    assert why_missing("devices", [four]) == (
        "no device has 5 timed exchanges, and half of its own"
    )
    run = read(fake_run(tmp_path / "longer", rounds=15))
    figure = Figure()
    draw("devices", [run], figure)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert names
    assert all(re.search(r" \((5|6) of (5|6)\)$", name) for name in names)
    left_out = len(run.devices) - len(names)
    assert figure.axes[0].get_title() == (
        f"{left_out} of 12 devices have too few timed exchanges" if left_out else ""
    )


def test_a_live_run_is_drawn_up_to_its_last_closed_round(tmp_path: Path) -> None:
    live = FakeRun(tmp_path / "run")
    live.play(3)
    (row, *_) = live.begin_round()
    live.store.add(live.exchange(row))
    live.store.flush()
    found = read(live.folder)
    live.store.close()
    assert found.rounds["round"].tolist() == [1, 2, 3]
    assert found.exchanges["round"].max() == 3


def test_rates_are_those_of_the_store_after_every_round(run: RunFigures, folder: Path) -> None:
    rounds, lowest, median = rates_over_rounds(run)
    with RunReader(folder) as reader:
        for number, low, middle in zip(rounds, lowest, median, strict=True):
            counts = reader.selection_counts(until_round=int(number))
            rates = [count.selected / count.rounds for count in counts]
            assert (low, middle) == pytest.approx((min(rates), np.median(rates)))
        names = [device.name for device in reader.devices()]
        by_name = {count.device: count for count in reader.selection_counts()}
    selected, aggregated = final_rates(run)
    assert selected == pytest.approx([by_name[name].selected / 30 for name in names])
    assert aggregated == pytest.approx([by_name[name].aggregated / 30 for name in names])


def test_a_replica_has_the_rates_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fake_run(tmp_path / "run", rounds=12)
    size = replication.size_of_round(4, 12)
    monkeypatch.setattr(replication, "WINDOW_BYTES", 5 * size)
    copy = tmp_path / "replica"
    copy.mkdir()
    replica = replication.Replica(copy)
    with RunReader(folder) as reader:
        source, cursor, has_more = replication.RowSource(reader), replication.Cursor(), True
        while has_more:
            page = source.page(cursor)
            replica.apply(page)
            cursor, has_more = page.cursor, page.has_more
    replica.close()
    ours, theirs = read(copy), read(folder)
    assert ours.choices.since == 7
    for mine, other in zip(final_rates(ours), final_rates(theirs), strict=True):
        assert mine == pytest.approx(other)
    rounds, lowest, _ = rates_over_rounds(ours)
    assert rounds.tolist() == [8, 9, 10, 11, 12]
    assert lowest == pytest.approx(rates_over_rounds(theirs)[1][7:])
    assert heat_map(ours).selected.shape == (12, 5)
    for what in ("selection", "rates"):
        assert b"<svg" in figure_bytes(what, [ours], "svg")


def test_the_map_shows_who_was_selected_and_away(run: RunFigures) -> None:
    found = heat_map(run)
    assert (found.devices, found.rounds) == (1, 1)
    assert found.selected.shape == (12, 30)
    assert set(found.selected.sum(axis=0)) == {0.0, 4.0}
    assert np.flatnonzero(found.away.all(axis=0)).tolist() == [VOID_ROUND - 1]


@given(
    n=st.integers(1, 7),
    t=st.integers(1, 9),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_cell_of_a_large_map_is_the_share_of_its_devices_and_rounds(
    n: int, t: int, rows: int, columns: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, t, n)
    marks = rng.integers(0, 3, (t, n)) * (np.arange(t)[:, None] >= first)
    at, device = np.nonzero(marks)
    made = replace(
        BLANK,
        devices=tuple("abcdefg"[:n]),
        rounds={"round": np.arange(1.0, t + 1)},
        choices=replace(
            BLANK.choices,
            first=first,
            at=at,
            device=device,
            is_selected=marks[at, device] == 1,
            is_available=marks[at, device] == 1,
        ),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "HEAT_ROWS", rows)
        patch.setattr(selection, "HEAT_COLUMNS", columns)
        found = heat_map(made)
    assert found.selected.shape[0] <= rows
    assert found.selected.shape[1] <= columns
    for row, column in np.ndindex(found.selected.shape):
        devices = range(row * found.devices, min((row + 1) * found.devices, n))
        rounds = range(column * found.rounds, min((column + 1) * found.rounds, t))
        cells = [marks[r, d] for r in rounds for d in devices if r >= first[d]]
        for kind, share in ((1, found.selected), (2, found.away)):
            expected = cells.count(kind) / len(cells) if cells else np.nan
            assert share[row, column] == pytest.approx(expected, nan_ok=True)


def test_the_map_in_a_page_is_as_large_as_its_panel() -> None:
    large = replace(
        BLANK,
        devices=("a", "b"),
        profiles=("", ""),
        rounds={"round": np.arange(1.0, 490.0)},
        choices=replace(BLANK.choices, first=np.zeros(2, dtype=np.int64)),
    )
    svg = inline_svg("selection", [large])
    width, height, scale = (
        re.findall(pattern, svg)[0]
        for pattern in (r'<image [^>]*width="(\d+)"', r'height="(\d+)" tr', r"matrix\(([^)]*)\)")
    )
    panel = re.findall(r'<clipPath[^>]*>\s*<rect [^>]*width="([\d.]+)" height="([\d.]+)"', svg)[0]
    x, _, _, y, *_ = map(float, scale.split())
    assert (x * int(width), y * int(height)) == pytest.approx(tuple(map(float, panel)), abs=0.1)


def test_the_parts_of_an_exchange_add_up_to_its_time(run: RunFigures) -> None:
    total = valid_times(run)
    parts = parts_of(run, TIMED_PHASES, "_s", total)
    assert list(parts) == ["download", "load", "train", "decode and encode", "upload", "other"]
    assert sum(parts.values()) == pytest.approx(np.nan_to_num(total))


def test_problems_are_counted_in_their_round(run: RunFigures) -> None:
    (late,) = problems_of(run).values()
    assert np.flatnonzero(late).tolist() == [LATE_ROUND - 1]


def test_a_run_keeps_its_colour_where_another_lacks_the_data(run: RunFigures) -> None:
    uniform = replace(run, policy="uniform", beta=None, run_id="u")
    uniform = replace(
        uniform, rounds={**run.rounds, "queue_total": np.zeros(run.rounds["round"].size)}
    )
    other = replace(run, seed=8)
    assert [one.label for one in shown([uniform, run, other])] == [
        f"digits-12, {rest}" for rest in ("uniform, seed 7", "rbcs-f, seed 7", "rbcs-f, seed 8")
    ]
    svg = inline_svg("queues", [uniform, run, other])
    assert "var(--series-1," not in svg
    assert "var(--series-2," in svg
    assert "uniform" not in svg


@pytest.mark.parametrize("what", ["accuracy", "accuracy-time"])
def test_two_classes_have_a_curve_of_the_auroc(run: RunFigures, what: str) -> None:
    assert "AUROC" not in inline_svg(what, [run])
    metrics = {**run.metrics, "auroc_mean": np.linspace(0.5, 0.9, run.metrics["round"].size)}
    assert ">AUROC<" in inline_svg(what, [replace(run, metrics=metrics)])


def test_regression_is_measured_by_its_error(tmp_path: Path) -> None:
    fake_run(tmp_path / "run", rounds=3, devices=4)
    with closing(sqlite3.connect(tmp_path / "run" / DATABASE)) as connection:
        connection.execute("UPDATE run SET task = 'regression'")
        for part in ("mean", "worst10", "best10"):
            connection.execute(f"UPDATE metric SET rmse_{part} = 0.5, accuracy_{part} = NULL")
        connection.execute("UPDATE device_metric SET rmse = 0.25, accuracy = NULL")
        connection.commit()
    found = read(tmp_path / "run")
    assert found.scores.tolist() == [0.25] * 4
    assert "RMSE, mean over devices" in inline_svg("accuracy", [found])
    assert "RMSE of a device" in inline_svg("fairness", [found])
    assert "loss, half the squared error" in inline_svg("loss", [found])


def test_personal_models_are_beside_the_global_one(run: RunFigures) -> None:
    own = replace(run, personal_scores=run.scores + 0.01)
    assert ">personal models<" in inline_svg("fairness", [own])
    assert ">global model<" in inline_svg("fairness", [own])
    assert "model<" not in inline_svg("fairness", [run])


def test_changed_settings_are_lines_with_their_round(run: RunFigures) -> None:
    changes = (Change("V", 10.0, 8), Change("beta", 0.1, 20), Change("deadline_s", 9.0, 21))
    svg = inline_svg("queues", [replace(run, changes=changes)])
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert "round 8: V = 10" in texts
    assert "round 20: beta = 0.1" in texts
    assert "deadline" not in texts
    assert "guaranteed, mean: 0.15" in inline_svg("rates", [replace(run, changes=changes)])


@pytest.mark.parametrize(
    "name", ["$x_1$ & <b>", "_hidden", "line\nbreak \x1b[1m", "日本", 'x id="a": #0072b2 url(#b']
)
def test_any_name_of_a_run_is_drawn_as_text(run: RunFigures, name: str) -> None:
    svg = inline_svg("accuracy", [replace(run, name=name), replace(run, name="other")])
    texts = "".join(ElementTree.fromstring(svg).itertext())
    assert printable(name) in texts


@pytest.mark.parametrize(
    ("seconds", "unit"), [(599, "s"), (600, "min"), (10_800, "h"), (259_200, "days")]
)
def test_long_times_have_large_units(seconds: float, unit: str) -> None:
    assert time_unit(seconds)[1] == unit


LACKS: dict[str, tuple[Callable[[RunFigures], RunFigures], str]] = {
    "selection": (
        lambda run: replace(run, choices=replace(run.choices, knows_availability=False)),
        "the run stores the selected devices only",
    ),
    "rates": (lambda run: replace(run, devices=()), "the run has no device"),
    "phases": (
        lambda run: without(run, *(f"{phase}_s" for phase in TIMED_PHASES)),
        "no exchange has the times of its phases",
    ),
    "devices": (lambda run: without(run, "tau_s"), "no exchange has a valid time"),
    "estimator": (lambda run: without(run, "tau_hat_s"), "no exchange time was predicted"),
    "energy": (lambda run: without(run, "energy_j"), "the power of the devices is unknown"),
    "fairness": (
        lambda run: replace(run, scores=run.scores[:1]),
        "a spread needs two devices whose accuracy is known, got 1",
    ),
    "accuracy": (
        lambda run: replace(run, metrics={key: x[:0] for key, x in run.metrics.items()}),
        "the model was not evaluated",
    ),
    "contention": (
        lambda run: replace(
            run,
            outcome=("done",) * len(run.outcome),
            exchanges={**run.exchanges, "is_valid": np.ones(len(run.outcome))},
            rounds={**run.rounds, "lag_p99_s": np.zeros(30)},
        ),
        "all 116 exchanges arrived in time, with valid times",
    ),
}


def without(run: RunFigures, *columns: str) -> RunFigures:
    """Return a run whose exchanges lack some columns."""
    unknown = np.full(run.exchanges["round"].size, np.nan)
    return replace(run, exchanges={**run.exchanges, **dict.fromkeys(columns, unknown)})


@pytest.mark.parametrize("what", LACKS)
def test_a_figure_without_its_data_has_a_reason(run: RunFigures, what: str) -> None:
    change, reason = LACKS[what]
    assert why_missing(what, [run]) is None
    assert why_missing(what, [change(run)]) == reason
    with pytest.raises(NoFigureError, match=reason):
        inline_svg(what, [change(run)])
