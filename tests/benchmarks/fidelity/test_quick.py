"""The quick form on the real kernel: what it says of itself holds, and nothing stays."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from benchmarks import fidelity
from benchmarks._fidelity.catalogue import GROUPS, problem
from benchmarks._fidelity.trace import synthetic
from fairbed.testbed.backends.choice import BackendName
from fairbed.testbed.backends.network.owner import FOLDER, NetworkOwner
from fairbed.testbed.run.broker import find_broker
from tests.processes import describe, own_children

Rows = list[dict[str, Any]]

KEYS = {"backend", "quantity", "target", "achieved", "error", "limit", "ok", "unit", "group"}


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    name: BackendName = request.param
    why_not = anyio.run(problem, name)
    if why_not is not None:
        pytest.skip(why_not)
    return name


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> Rows:
    assert fidelity.main(["--quick", "--json", *arguments]) == 0
    rows: Rows = json.loads(capsys.readouterr().out)
    return rows


def check(rows: Rows) -> None:
    for row in rows:
        assert row.keys() >= KEYS
        if row["achieved"] is None:
            assert row["ok"] is None
            assert row["reason"]
        else:
            assert row["valid"] >= 1
        if row["error"] is not None and row["limit"] is not None:
            assert row["ok"] == (abs(row["error"]) <= row["limit"])


def own_networks() -> list[Path]:
    found = []
    for path in FOLDER.glob("*.lock"):
        try:
            claim = msgspec.json.decode(path.read_bytes(), type=NetworkOwner)
        except (OSError, msgspec.DecodeError):
            continue
        if claim.pid == os.getpid():
            found.append(path)
    return found


def leftovers() -> list[str]:
    """Processes of ours, and networks, that a benchmark has left behind."""
    processes = [describe(process) for process in own_children()]
    return processes + [str(path) for path in own_networks()]


OF_CONTAINER = {"cpu", "transfer", "loss"}


@pytest.mark.parametrize("backend", ["container"], indirect=True)
def test_processor_and_link_of_a_container_are_measured_and_nothing_stays(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the network and the groups of a namespace: the test below does the rest."""
    rows = bench(capsys, "--backend", backend, "--quantity", ",".join(OF_CONTAINER))
    check(rows)
    assert {row["group"] for row in rows} == OF_CONTAINER
    assert {row["backend"] for row in rows} == {backend}
    assert leftovers() == []


@pytest.mark.slow
@pytest.mark.timeout(300)  # it takes more than a minute
@pytest.mark.broker
@pytest.mark.skipif(find_broker("mosquitto") is None, reason="mosquitto is not installed")
@pytest.mark.parametrize("backend", ["process", "namespace"], indirect=True)
def test_every_quantity_is_measured_and_nothing_stays(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = set(GROUPS)
    if backend == "namespace" and anyio.run(problem, "container") is None:
        groups -= OF_CONTAINER  # measured above, with the same network and the same groups
    rows = bench(
        *(capsys, "--backend", backend, "--attempts", "1", "--quantity", ",".join(sorted(groups)))
    )
    check(rows)
    assert {row["group"] for row in rows} == groups
    assert {row["backend"] for row in rows} == {backend}
    assert leftovers() == []
    links = [row for row in rows if "Mbit/s" in row["quantity"] and row["achieved"] is not None]
    for row in links:  # a link without a limit would be ten times as fast
        assert row["achieved"] == pytest.approx(row["target"] or row["achieved"], rel=0.5)


def test_rows_of_before_become_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"backend": "process", "quantity": "goodput 1 Mbit/s up", "target": 1e6}
    row |= {"achieved": 1.01e6, "error": 0.01, "limit": 0.03, "ok": True, "unit": "bit/s"}
    source = tmp_path / "rows.json"
    source.write_text(json.dumps([row | {"group": "goodput", "valid": 3, "attempts": 3}]))
    document = tmp_path / "accuracy.md"
    shutil.copy(Path(__file__).parents[3] / "docs" / "accuracy.md", document)
    assert fidelity.main(["--from", str(source), "--write", str(document)]) == 0
    assert "goodput 1 Mbit/s up" in capsys.readouterr().out
    assert "| goodput 1 Mbit/s up | 1.01 Mbit/s (+1.0 %) |" in document.read_text()


def test_an_unknown_quantity_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        fidelity.main(["--quantity", "cpu,colour"])
    assert "--quantity: must be some of cpu, step" in capsys.readouterr().err


def test_the_synthetic_trace_has_no_holes_and_is_always_the_same() -> None:
    first, again = synthetic(), synthetic()
    assert first == again
    assert 0.5e6 <= first.lowest < first.highest <= 40e6
    assert 4e6 < first.mean < 16e6
