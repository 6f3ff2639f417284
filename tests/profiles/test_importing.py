"""An imported trace is a link that loads, with the rates of the trace."""

from pathlib import Path

import numpy as np
import pytest

from fairbed import profiles
from fairbed.profiles.importing import Description, Imported, import_link
from fairbed.profiles.series import Series
from fairbed.profiles.traces import Trace, TraceReader
from fairbed.profiles.tracks import device_tracks

DESCRIPTION = Description(title='A "walk"\nhome', source="a phone\\of mine", licence="mine")


def trace(**columns: list[float]) -> Trace:
    rows = len(next(iter(columns.values())))
    return Trace(
        np.arange(rows, dtype=np.float64), {k: np.array(v) for k, v in columns.items()}, float(rows)
    )


def loaded(imported: Imported, folder: Path, name: str = "walk") -> profiles.LinkProfile:
    for file, content in imported.files.items():
        (folder / file).write_text(content, encoding="utf-8")
    return profiles.load_link(folder / f"{name}.toml")


def rates(link: profiles.LinkProfile) -> tuple[Series, Series]:
    rng = np.random.Generator(np.random.PCG64(0))
    tracks = device_tracks(None, link.link, TraceReader({}), rng).link
    assert tracks is not None
    return tracks.down_bps, tracks.up_bps


def test_a_trace_of_both_directions_becomes_a_link(tmp_path: Path) -> None:
    both = trace(
        down_bps=[1e6, 3e6], up_bps=[0.0, 5e5], delay_s=[0.01, 0.03], loss_ratio=[0.0, 0.1]
    )
    link = loaded(import_link("walk", both, None, DESCRIPTION), tmp_path)
    assert (link.title, link.licence) == ('A "walk" home', "mine")
    assert (link.link.down_bps, link.link.up_bps) == (2e6, 2.5e5)
    assert (link.link.delay_s, link.link.loss_ratio) == (0.02, 0.05)
    assert rates(link) == (
        Series((0.0, 1.0), (1e6, 3e6), 2.0),
        Series((0.0, 1.0), (0.0, 5e5), 2.0),
    )
    assert link.link.down.source == "mean of the trace: a phone\\of mine"


def test_two_traces_lie_beside_each_other(tmp_path: Path) -> None:
    imported = import_link(
        "walk", trace(bps=[1e6, 3e6]), trace(bps=[7e5]), DESCRIPTION, delay_s=0.03
    )
    assert list(imported.files) == ["walk.toml", "walk.down.csv", "walk.up.csv"]
    link = loaded(imported, tmp_path)
    assert rates(link) == (Series((0.0, 1.0), (1e6, 3e6), 2.0), Series.constant(7e5))
    assert link.link.delay_s == 0.03
    assert imported.found[0].startswith("walk.down.csv: bps: 2 rows, 2 s, mean 2e+06, p5 1e+06, ")


def test_a_rate_without_direction_is_used_for_both(tmp_path: Path) -> None:
    link = loaded(import_link("walk", trace(bps=[1e6, 3e6]), None, DESCRIPTION), tmp_path)
    assert rates(link)[0] == rates(link)[1]
    assert link.link.delay_s == 0.0
    assert "not recorded" in link.link.delay.source


def test_an_uplink_may_be_given_as_a_number(tmp_path: Path) -> None:
    imported = import_link("walk", trace(down_bps=[1e6]), None, DESCRIPTION, up_bps=2e5)
    assert rates(loaded(imported, tmp_path))[1] == Series.constant(2e5)


def test_a_missing_or_zero_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^must have a column for up_bps, got down_bps"):
        import_link("walk", trace(down_bps=[1e6]), None, DESCRIPTION)
    with pytest.raises(ValueError, match=r"^down_bps must be above 0 at some time, got only zeros"):
        import_link("walk", trace(bps=[0.0, 0.0]), None, DESCRIPTION)


def test_a_queue_is_written_with_the_link(tmp_path: Path) -> None:
    queue = profiles.LinkQueue(depth_s=0.3, discipline="fq_codel")
    both = trace(bps=[1e6, 3e6])
    imported = import_link("walk", both, None, DESCRIPTION, queue=queue)
    assert loaded(imported, tmp_path).link.queue == queue
    sized = import_link("run", both, None, DESCRIPTION, queue=profiles.LinkQueue(None, 64_000))
    assert loaded(sized, tmp_path, "run").link.queue == profiles.LinkQueue(None, 64_000)
