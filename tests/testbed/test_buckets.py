"""data.buckets: sequences padded to several lengths, live, replayed, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the model is exported with torch")
pytest.importorskip("onnx", reason="the model is exported as graphs")

from fairbed import profiles
from fairbed.coordinator.store import RunReader
from fairbed.testbed.cli.main import main
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import DatasetError
from fairbed.testbed.experiment.datasets.loading import load
from fairbed.testbed.experiment.file import ExperimentError, load_experiment
from fairbed.testbed.recording.run_store import read_training
from fairbed.testbed.replay.run import replay_experiment
from tests.coordinator.task.test_lengths import LENGTH, VOCABULARY
from tests.testbed.replay.test_resume import cut_off_at
from tests.testbed.small_run import Running, running
from tests.testbed.test_positions import result_of

HERE, N = "tests.testbed.test_buckets", 60

EXPERIMENT = f"""
name = "sentences"
rounds = 2
[model]
name = "tests.coordinator.task.test_lengths:recurrent"
[data]
source = "{HERE}:sentences"
buckets = [3, 5, 8]
classes = 9
[training]
learning_rate = 0.5
batch_size = 5
micro_batch = 2
[selection]
per_round = 2
[replay]
costs_from = "measured"
[[fleet]]
profile = "raspberry-pi-4b"
name = "pi"
count = 2
"""

COSTS = (
    "{step_s=1e-3, example_s=1e-4, evaluation_step_s=1e-4, evaluation_example_s=1e-5, shorter=["
    "{length=3, step_s=4e-4, example_s=4e-5, evaluation_step_s=4e-5, evaluation_example_s=4e-6},"
    "{length=5, step_s=6e-4, example_s=6e-5, evaluation_step_s=6e-5, evaluation_example_s=6e-6}]}"
)


def sentences() -> dict[str, Any]:
    """Return sentences that count upwards, and mostly are short, with their next tokens."""
    rng = np.random.default_rng(1)
    starts, short = rng.integers(0, VOCABULARY - 1, (N, 1)), rng.integers(2, 4, (N, 1))
    lengths = np.where(rng.random((N, 1)) < 0.7, short, rng.integers(4, LENGTH + 1, (N, 1)))
    x = 1 + (starts + np.arange(LENGTH)) % (VOCABULARY - 1)
    is_padding = np.arange(LENGTH) >= lengths
    y = np.where(is_padding, -1, np.roll(x, -1, axis=1))
    return {"x": np.where(is_padding, 0, x), "y": y}


def with_an_empty_one() -> dict[str, Any]:
    found = sentences()
    found["x"][7], found["y"][7] = 0, -1
    found["y"] = found["x"][:, 0].clip(1) - 1
    return found


def of_numbers() -> dict[str, Any]:
    return {"x": sentences()["x"].astype(np.float32), "y": sentences()["x"][:, 0] % 2}


def with_numbers_as_targets() -> dict[str, Any]:
    x = sentences()["x"]
    return {"x": x, "y": x * 0.37}


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_a_live_run_and_its_replay_train_the_same_model(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "sentences.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    chosen = f"model.engine='{engine}'"
    live = result_of(path, "run", chosen, "fleet=[{name='pi', count=2}]")
    replayed = result_of(path, "replay", chosen)
    assert live[1].perplexity == replayed[1].perplexity
    assert live[1].exact_match_mean == replayed[1].exact_match_mean
    assert [row.steps for row in live[3]] == [row.steps for row in replayed[3]]


@pytest.mark.slow
@pytest.mark.full
def test_steps_of_short_sequences_take_less_time(tmp_path: Path) -> None:
    path = tmp_path / "sentences.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    with_buckets = result_of(path, "replay", "name='a'")
    resolved = load_experiment(tmp_path / "replay" / "experiment.toml")
    costs = resolved.replay.task_costs
    assert costs is not None
    assert [each.length for each in costs.shorter] == [3, 5]
    assert costs.shorter[0].step_s + costs.shorter[0].example_s < costs.step_s + costs.example_s
    training = read_training(tmp_path / "replay")
    with RunReader(tmp_path / "replay") as reader:
        on = {device.name: training.of_device(device) for device in reader.devices()}
        speeds = [
            (on[x.device].reference_s(x.n_k, x.steps) or 0.0) / (x.train_s or 1.0)
            for x in reader.exchanges()
        ]
    assert speeds == pytest.approx([profiles.load("raspberry-pi-4b").core_speed] * len(speeds))
    (tmp_path / "replay").rename(tmp_path / "of-buckets")
    text = EXPERIMENT.replace("buckets = [3, 5, 8]\n", "")
    path.write_text(text, encoding="utf-8")
    of_one = result_of(path, "replay", f"replay.costs_from='{tmp_path / 'of-buckets'}'")
    times = [sum(row.train_s or 0.0 for row in rows) for rows in (with_buckets[3], of_one[3])]
    assert 0.0 < times[0] < times[1]


TORCH = ("model.engine='torch'", "replay.costs_from='shipped'", f"replay.task_costs={COSTS}")


@pytest.mark.full
def test_a_resumed_replay_has_the_bits_of_an_uninterrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "sentences.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    of = load_experiment(path, [*TORCH, "rounds=4", "replay.noise=0.1"])
    replay_experiment(of, tmp_path / "whole", "run", lambda replayed: None)
    for at in (1, 3):
        cut_off_at(at, of, tmp_path / "parts")
    replay_experiment(of, tmp_path / "parts", "run", lambda replayed: None)
    whole, parts = final_of(tmp_path / "whole"), final_of(tmp_path / "parts")
    np.testing.assert_array_equal(parts[0], whole[0])
    assert parts[1] == whole[1]
    assert len(whole[1]) == 4 * 2
    assert whole[0].any()


@pytest.mark.slow
@pytest.mark.full
def test_a_live_run_that_was_killed_resumes_to_the_model_of_its_replay(tmp_path: Path) -> None:
    settings = (
        "fleet=[{name='pi', count=2}]",
        f"data={{source='{HERE}:sentences', buckets=[3, 5, 8], classes=9}}",
        "model={name='tests.coordinator.task.test_lengths:recurrent', engine='torch'}",
        "training={learning_rate=0.5, batch_size=5, micro_batch=2}",
    )
    options = [part for setting in settings for part in ("--set", setting)]
    with running(tmp_path, rounds=20, options=options) as run:
        run.wait_round(2)
        run.process.kill()
        run.finish()
        assert 2 <= run.rounds() < 20
    code, _, err = Running(tmp_path, rounds=20, resume=True).finish()
    assert code == 0, err
    boards = "fleet=[{name='pi', count=2, profile='raspberry-pi-4b'}]"
    options = ["--set", "replay.costs_from='measured'", "--set", boards]
    replay = ["replay", str(run.folder / "experiment.toml"), "--out", str(tmp_path / "replay")]
    assert main([*replay, *options]) == 0
    live, replayed = final_of(run.folder), final_of(tmp_path / "replay")
    np.testing.assert_array_equal(live[0], replayed[0])
    assert live[0].any()


def final_of(folder: Path) -> tuple[Any, list[Any]]:
    """Return the final model of a run, and the steps and times of its exchanges."""
    with RunReader(folder) as reader:
        found = reader.final_model()
        assert found is not None
        rows = [(x.round, x.device, x.steps, x.train_s, x.tau_s) for x in reader.exchanges()]
    return found[1], rows


def loaded(source: str = "sentences", **options: Any) -> Any:
    return load(DataConfig(source=f"{HERE}:{source}", **options), 0, {})


def test_the_lengths_are_chosen_or_given() -> None:
    found = loaded(buckets=2)
    assert len(found.buckets) == 2
    assert found.buckets[-1] == LENGTH
    assert found.buckets[0] == 3, "most sentences have 2 or 3 tokens"
    assert "sequences are padded to 3, 8 tokens" in found.notes[-1]
    assert loaded(buckets=(4, LENGTH)).buckets == (4, LENGTH)
    assert loaded().buckets == ()


@pytest.mark.parametrize(
    ("source", "buckets", "line"),
    [
        ("sentences", (4, 6), "data.buckets: the longest must be 8, the length of x, got 6 (row "),
        (
            "with_an_empty_one",
            2,
            "each sequence must have a token, got padding alone (token 0) in ",
        ),
        ("of_numbers", 2, "data.buckets: must be set for sequences of tokens, integer x, got num"),
        ("with_numbers_as_targets", 2, "data.buckets: must not be set if each token has a number"),
    ],
)
def test_data_without_buckets_are_one_line(source: str, buckets: Any, line: str) -> None:
    with pytest.raises(DatasetError) as caught:
        loaded(source, buckets=buckets)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("buckets", "line"),
    [
        ("[5, 3, 8]", "buckets must increase, got 3 after 5"),
        ("[8]", "buckets must be 2 to 32 lengths, got 1"),
        ("[0, 8]", "data.buckets"),
        ("1", "data.buckets"),
    ],
)
def test_lengths_that_are_no_buckets_are_one_line(tmp_path: Path, buckets: str, line: str) -> None:
    path = tmp_path / "sentences.toml"
    path.write_text(EXPERIMENT.replace("[3, 5, 8]", buckets), encoding="utf-8")
    with pytest.raises(ExperimentError) as caught:
        load_experiment(path)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
