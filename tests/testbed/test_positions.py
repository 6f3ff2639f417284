"""Tokens with a target at each position: a live run, its replay, and what both report."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the model is exported with torch")
pytest.importorskip("onnx", reason="the model is exported as graphs")

from fairbed.coordinator.report.summary import RunSummary, summarise_run
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import DeviceMetricRow, MetricRow
from fairbed.coordinator.task.catalogue import load_task
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment import shards
from fairbed.wire.artifact import Artifact
from tests.coordinator.task.test_positions import LENGTH, VOCABULARY

PLACE = "tests.testbed.test_positions"
N = 60

EXPERIMENT = f"""
name = "tokens"
rounds = 3
[model]
name = "tests.coordinator.task.test_positions:tokens"
[data]
source = "{PLACE}:sentences"
[training]
learning_rate = 0.5
[selection]
per_round = 2
[replay]
costs_from = "measured"
[[fleet]]
profile = "raspberry-pi-4b"
name = "pi"
count = 2
"""


def sentences() -> dict[str, Any]:
    """Return sentences that count upwards; the target of a position is its next token."""
    rng = np.random.default_rng(1)
    starts, lengths = rng.integers(0, VOCABULARY, (N, 1)), rng.integers(2, LENGTH + 1, (N, 1))
    x = (starts + np.arange(LENGTH)) % VOCABULARY
    is_padding = np.arange(LENGTH) >= lengths
    return {"x": np.where(is_padding, 0, x), "y": np.where(is_padding, -1, (x + 1) % VOCABULARY)}


def result_of(
    path: Path, command: str, *settings: str
) -> tuple[RunSummary, MetricRow, list[DeviceMetricRow], list[Any]]:
    out = path.parent / command
    options = [part for setting in settings for part in ("--set", setting)]
    options += ["--headless"] if command == "run" else []
    assert main([command, str(path), "--out", str(out), *options]) == 0
    with RunReader(out) as reader:
        return (
            summarise_run(reader),
            reader.metrics()[-1],
            reader.device_metrics(),
            reader.exchanges(),
        )


@pytest.mark.slow
@pytest.mark.full
def test_tokens_train_in_a_live_run_and_in_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    built = list[Artifact]()

    def load_once(*args: Any, **options: Any) -> Artifact:
        if not built:
            built.append(load_task(*args, **options))
        return built[0]

    monkeypatch.setattr(f"{shards.__name__}.load_task", load_once)
    path = tmp_path / "tokens.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    live, replayed = (
        result_of(path, "run", "fleet=[{name='pi', count=2}]"),
        result_of(path, "replay"),
    )
    for summary, last, devices, exchanges in (live, replayed):
        assert len(devices) == 2
        assert all(row.positions is not None and row.positions > row.n for row in devices)
        loss = sum((row.loss or 0.0) * (row.positions or 0) for row in devices)
        pooled = loss / sum(row.positions or 0 for row in devices)
        assert last.perplexity is not None
        assert last.perplexity == pytest.approx(np.exp(pooled), rel=1e-6)
        assert last.perplexity < VOCABULARY
        assert last.exact_match_mean is not None
        assert summary.positions is not None
        assert summary.positions.perplexity == last.perplexity
        assert summary.accuracy.noise is None
        done = [row for row in exchanges if row.round == 3]
        assert sum(row.weight or 0.0 for row in done) == pytest.approx(1.0)
    # The same devices, seeds and weights: the same model.
    assert live[1].perplexity == pytest.approx(replayed[1].perplexity, rel=1e-6)
    assert [row.weight for row in live[3]] == pytest.approx([row.weight for row in replayed[3]])
    capsys.readouterr()
    assert main(["show", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "of positions: mean 0." in shown
    assert f"perplexity {live[1].perplexity:.3f}" in " ".join(shown.split())


@pytest.mark.slow
@pytest.mark.full
def test_a_live_run_by_torch_has_the_losses_of_the_graphs(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    by_torch = result_of(path, "run", "fleet=[{name='pi', count=2}]", "model.engine='torch'")
    graphs = result_of(path, "replay", "model.engine='onnx'")
    for one, other in zip(by_torch[2], graphs[2], strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
        counts = [(row.n, row.positions) for row in (one, other)]
        assert counts[0] == counts[1]
        for measure in ("accuracy", "exact_match", "iou", "class_accuracy"):
            assert getattr(one, measure) is not None
            assert getattr(one, measure) == pytest.approx(getattr(other, measure), abs=0.02)
    assert [row.weight for row in by_torch[3]] == pytest.approx([row.weight for row in graphs[3]])
    losses = [[row.loss_train for row in rows[3]] for rows in (by_torch, graphs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
