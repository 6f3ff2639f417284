"""Warnings about rounds in which a rule does not act as its formula, live and in replays."""

from pathlib import Path

import pytest

from fairbed.coordinator.policy.config import AggregationConfig, TrainingConfig
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.replay.run import replay_experiment
from tests.coordinator.lab import EXAMPLES, lab, make_config
from tests.testbed.replay.test_training import an_experiment

BATCH = (
    "training.batch_size must be at least the {} examples of the largest device with "
    "aggregation.rule 'q-fedsgd', got {}: {} of {} devices send the gradient of a random "
    "mini-batch, which is longer on average, so that steps are too short; raise it"
)


def events(folder: Path, kind: str) -> list[tuple[int | None, str, str]]:
    with RunReader(folder) as reader:
        found = [event for _, event in reader.events() if event.kind == kind]
    return [(event.round, event.level, event.text) for event in found]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("rule", "limit"), [("propfair", "0.3"), ("corefed", "0.475")], ids=["propfair", "corefed"]
)
async def test_losses_above_m_are_an_event_of_each_round(
    tmp_path: Path, rule: str, limit: str
) -> None:
    """The losses of an untrained softmax over ten classes are ln 10 = 2.30 nats."""
    async with lab(tmp_path) as place:
        config = make_config(rounds=2, aggregation=AggregationConfig(rule=rule, M=0.5))
        assert await place.run(config) == "done"
    first, second = events(tmp_path / "run", "losses")
    assert (first[:2], second[:2]) == ((1, "warning"), (2, "warning"))
    assert first[2].startswith(
        f"{rule}: losses must be at most {limit} with aggregation.M = 0.5, got 2 of 2 above it, "
        "up to 2."
    )
    assert "; they count alike: repeat the run with a larger M (pi-" in first[2]


@pytest.mark.parametrize(("M", "rounds"), [(0.25, 12), (50.0, 0)])
def test_a_replay_has_the_same_events(tmp_path: Path, M: float, rounds: int) -> None:
    experiment = an_experiment(aggregation={"rule": "propfair", "M": M, "max_weight": 0.5})
    replay_experiment(experiment, tmp_path / "run", "run", lambda replayed: None)
    found = events(tmp_path / "run", "losses")
    assert [at for at, _, _ in found] == list(range(1, rounds + 1))
    if found:
        assert "got 4 of 4 above it" in found[0][2]
        assert found[0][2].endswith(" and 1 more)")


@pytest.mark.anyio
@pytest.mark.parametrize("batch", [EXAMPLES - 1, EXAMPLES])
async def test_a_live_run_warns_once_of_mini_batches_under_q_fedsgd(
    tmp_path: Path, batch: int
) -> None:
    training = TrainingConfig(max_steps=1, batch_size=batch)
    async with lab(tmp_path) as place:
        config = make_config(
            rounds=2, aggregation=AggregationConfig(rule="q-fedsgd"), training=training
        )
        assert await place.run(config) == "done"
    line = BATCH.format(EXAMPLES, batch, 3, 3)
    expected = [(1, "warning", line)] if batch < EXAMPLES else []
    assert events(tmp_path / "run", "mini-batch") == expected


def test_a_replay_warns_of_mini_batches_before_its_first_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sgd.toml"
    path.write_text(
        'name = "sgd"\nrounds = 1\n[data]\ndataset = "digits"\n[model]\nname = "softmax"\n'
        '[training]\nmax_steps = 1\nbatch_size = 10\n[aggregation]\nrule = "q-fedsgd"\n'
        '[selection]\npolicy = "uniform"\nper_round = 2\n[[fleet]]\nmodel = "linear"\ncount = 3\n'
        "theta = [1.0, 0.5, 0.2]\n",
        encoding="utf-8",
    )
    assert main(["replay", str(path), "--out", str(tmp_path / "a")]) == 0
    ((at, level, line),) = events(tmp_path / "a", "mini-batch")
    assert (at, level) == (None, "warning")
    assert "got 10: 3 of 3 devices send" in line
    assert f"warning: {line}" in capsys.readouterr().err
    with RunReader(tmp_path / "a") as reader:
        most = max(device.n_k for device in reader.devices())
    assert f"must be at least the {most} examples" in line
    for name, size, count in (("b", most, 0), ("c", most - 1, 1)):
        settings = ["--set", f"training.batch_size={size}"]
        assert main(["replay", str(path), "--out", str(tmp_path / name), *settings]) == 0
        assert len(events(tmp_path / name, "mini-batch")) == count
    assert main(["replay", str(path), "--out", str(tmp_path / "d"), "--no-training"]) == 0
    assert events(tmp_path / "d", "mini-batch") == []
