"""The file of exchange times: what is read and refused, known errors, and a live cell resumed."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks import exchange_times, offline
from benchmarks._exchange_log import COLUMNS, read_exchanges, write_rows
from fairbed.testbed.errors import RunError, UsageError
from tests import needs

DATA = Path(exchange_times.__file__).parent / "data" / exchange_times.FILE


def line(run: str = "a", round_id: int = 1, device: str = "pi-1", **changed: str) -> list[str]:
    """Return an exchange of 2 s: 1 s of download, half of training, a quarter of upload."""
    cells = dict.fromkeys(COLUMNS, "")
    cells |= {
        **{"run": run, "fleet": "f", "link": "l", "model": "m", "codec": "int8"},
        **{"device": device, "outcome": "done", "round": str(round_id), "profile": "p"},
        **dict.fromkeys(("bytes_down", "bytes_up", "n_k", "steps"), "1000"),
        **{"concurrent": "0", "s_not_previous": "0", "cpu_speed": "0.25", "is_valid": "1"},
        **{"dispatched_at_s": "1", "tau_s": "2", "mu_cores": "1"},
        **{"downlink_bps": "1e6", "uplink_bps": "1e6"},
        **changed,
    }
    return [cells[name] for name in COLUMNS]


def test_known_errors_are_found_in_the_order_of_each_run(tmp_path: Path) -> None:
    """2, 4 and 4 s: the last value errs by half, then by nothing; the other run starts anew."""
    file = tmp_path / "times.csv.xz"
    times = [("a", 1, "2"), ("a", 2, "4"), ("a", 3, "4"), ("b", 1, "8"), ("b", 2, "8")]
    late = line("a", 4, tau_s="", outcome="late", is_valid="0")
    untimed = line("b", 3, tau_s="99", is_valid="0")
    write_rows(file, [*(line(run, at, tau_s=tau) for run, at, tau in times), late, untimed])
    whole, *_ = offline.score(read_exchanges(file))
    last = whole.errors["last value"]
    assert (whole.runs, whole.exchanges, whole.timed, last.count) == (2, 7, 5, 3)
    assert last.mape == pytest.approx(0.5 / 3)
    assert last.median_ape == 0.0


Lines = list[list[str]]
REFUSED: dict[str, tuple[Callable[[], Lines], str]] = {
    "negative": (lambda: [line(tau_s="-1")], "line 2: tau_s must be >= 0, got -1"),
    "not finite": (lambda: [line(tau_s="nan")], "line 2: tau_s must be a number, got nan"),
    "empty": (lambda: [line(n_k="")], "line 2: n_k must not be empty"),
    "half a device": (lambda: [line(n_k="1.5")], "line 2: n_k must be a number, got 1.5"),
    "outcome": (lambda: [line(outcome="fine")], "line 2: outcome must be one of"),
    "order": (lambda: [line(round_id=2), line()], "line 3: rounds of a run must not fall"),
    "twice": (lambda: [line(), line()], "line 3: a device must occur once in a round"),
    "short": (lambda: [line()[:-1]], f"line 2: must have {len(COLUMNS)} values"),
    "nothing": (lambda: [], "must have at least one exchange"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_line_is_refused_by_its_number(case: str, tmp_path: Path) -> None:
    lines, message = REFUSED[case]
    file = tmp_path / "times.csv.xz"
    write_rows(file, lines())
    with pytest.raises(UsageError, match=re.escape(message)) as found:
        offline.main([str(file)])
    assert "\n" not in str(found.value)


def test_a_truncated_file_and_other_columns_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "times.csv.xz"
    write_rows(file, [line()])
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"must be a whole \.csv\.xz file"):
        read_exchanges(file)
    with monkeypatch.context() as other:
        other.setattr("benchmarks._exchange_log.COLUMNS", (*COLUMNS[:-1], "tau_ms"))
        write_rows(file, [line()])
    with pytest.raises(UsageError, match="differs in tau_hat_s, tau_ms"):
        read_exchanges(file)


def test_an_unknown_estimator_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "times.csv.xz"
    write_rows(file, [line()])
    with pytest.raises(UsageError, match=r"^offline: ") as found:
        offline.main([str(file), "--estimator", "no_such_module:Name"])
    assert "\n" not in str(found.value)


def test_the_committed_file_is_read_and_described() -> None:
    page = (Path(offline.__file__).parents[1] / "docs" / "exchange-times.md").read_text()
    assert not [name for name in COLUMNS if f"`{name}`" not in page]
    assert DATA.stat().st_size < 1_000_000
    exchanges = read_exchanges(DATA)
    for factor, values in (("link", exchange_times.LINKS), ("codec", exchange_times.CODECS)):
        assert {x.key[factor] for x in exchanges} == set(values)


@needs.mosquitto
@pytest.mark.broker
def test_a_collection_goes_on_and_refuses_cells_of_other_settings(tmp_path: Path) -> None:
    """One live cell of two rounds; the second command runs nothing."""
    asked = ["--out", str(tmp_path), "--only", "phones.lte-steady.softmax.int8", "--exchanges", "1"]
    asked += ["--backend", "process", "--rounds"]
    assert exchange_times.main([*asked, "2"]) == 0
    file = tmp_path / exchange_times.FILE
    before, exchanges = file.read_bytes(), read_exchanges(file)
    assert len(exchanges) == 2 * exchange_times.PER_ROUND
    assert {x.key["profile"] for x in exchanges} == set(exchange_times.FLEETS["phones"])
    (info,) = (tmp_path / "cells").glob("*.json")
    ended = msgspec.json.decode(info.read_bytes(), type=exchange_times.CellInfo).collected
    assert exchange_times.main([*asked, "2"]) == 0
    assert msgspec.json.decode(info.read_bytes(), type=exchange_times.CellInfo).collected == ended
    assert file.read_bytes() == before
    with pytest.raises(RunError, match="must be a cell with these settings"):
        exchange_times.main([*asked, "3"])
