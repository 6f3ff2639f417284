"""Small fleets to replay, and experiments with them."""

from pathlib import Path
from typing import Any

from fairbed.testbed.experiment.file import Experiment, parse_experiment
from fairbed.testbed.replay.engine.engine import ReplayedRound, ReplayEngine
from fairbed.testbed.replay.setup import ReplaySetup, setup_of

EXAMPLES = Path(__file__).parents[3] / "examples"
QUICKSTART = EXAMPLES / "quickstart.toml"

COSTS: dict[str, Any] = {
    "step_s": 2e-3,
    "example_s": 1e-3,
    "evaluation_step_s": 1e-3,
    "evaluation_example_s": 5e-4,
    "load_s": 0.5,
}
"""Costs of a task with simple numbers."""


def experiment(*fleet: dict[str, Any], **sections: Any) -> Experiment:
    """Return an experiment with these groups of devices; sections override the defaults."""
    raw: dict[str, Any] = {
        "name": "small",
        "rounds": 30,
        "data": {"dataset": "digits"},
        "model": {"name": "softmax"},
        "training": {"epochs": 2, "batch_size": 20},
        "selection": {"policy": "uniform", "per_round": 2},
        "replay": {"examples": 110, "task_costs": COSTS},
        "fleet": list(fleet),
    }
    for name, section in sections.items():
        raw[name] = {**raw[name], **section} if isinstance(raw.get(name), dict) else section
    return parse_experiment(raw, "small.toml")


def replay_rounds(
    of: Experiment, rounds: int | None = None
) -> tuple[ReplaySetup, list[ReplayedRound]]:
    """Return the setup of an experiment, and its replayed rounds."""
    setup = setup_of(of)
    return setup, list(ReplayEngine(setup.decisions, setup.world).replay(rounds or of.rounds))


def seconds(s: float, count: int = 1) -> dict[str, Any]:
    """Return a linear group whose exchanges always take the same time."""
    return {
        "model": "linear",
        "theta": [s, 0.0, 0.0],
        "mu": [1.0, 1.0],
        "availability": 1.0,
        "noise": 0.0,
        "count": count,
    }
