"""The experiments of a comparison: who is recorded, and what is predicted. Pure."""

from msgspec import structs

from coordinator.config import EvaluationConfig
from testbed.experiment import Experiment, ExperimentError, SeedsConfig

RECORDED_POLICY, RECORDED_SEED = "uniform", 1
"""Of run A, which every device takes part in alike."""

PREDICTED_POLICY, PREDICTED_SEED = "rbcs-f", 2
"""Of run B and of its repeat."""


def check_rounds(experiment: Experiment) -> None:
    """See that every exchange ends with its round: only then cohorts and instants say it all.

    Raises:
        ExperimentError: Exchanges may outlive their rounds.
    """
    if experiment.round.goes_on:
        key = "mode" if experiment.round.is_buffered else "late"
        raise ExperimentError(
            f"round.{key}: must be left out of a comparison, got "
            f"{getattr(experiment.round, key)!r}: what a live run did can be imposed on a replay "
            "only where each exchange ends with its round"
        )


def recorded(experiment: Experiment) -> Experiment:
    """Return run A: its devices are recorded."""
    return _settled(experiment, "a", RECORDED_POLICY, RECORDED_SEED)


def predicted(experiment: Experiment) -> Experiment:
    """Return run B: a replay of what was recorded in A predicts it."""
    return _settled(experiment, "b", PREDICTED_POLICY, PREDICTED_SEED)


def _settled(experiment: Experiment, name: str, policy: str, seed: int) -> Experiment:
    """Return an experiment with the same devices, data and traces, but chance of its own.

    It is not evaluated before its end: how long an evaluation lasts is this machine's affair, and
    would move the devices along their traces.
    """
    shared = ("data", "init", "fleet", "traces")
    return structs.replace(
        experiment,
        name=f"{experiment.name[:60]}-{name}",
        seed=seed,
        seeds=SeedsConfig(**{purpose: experiment.seed_for(purpose) for purpose in shared}),
        selection=structs.replace(experiment.selection, policy=policy),
        evaluation=EvaluationConfig(every=0),
    )
