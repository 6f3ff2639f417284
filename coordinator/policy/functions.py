"""Checks the loss and the metrics that an experiment names; imported for one that names any."""

from fairbed.coordinator.policy.config import ACCURACY, EvaluationConfig, ModelConfig
from fairbed.wire.losses import LOSSES, METRICS, is_metric, label_of
from fairbed.wire.plugins import is_path


def functions_problem(model: ModelConfig, evaluation: EvaluationConfig, client: str | None) -> str:
    """Return why loss and metrics cannot be used; empty if they can."""
    if client is not None:
        key = "model.loss" if model.has_own_loss else "evaluation.metrics"
        return (
            f"{key} must be left out with training.client, which trains and measures itself, got "
            f"{client!r}; remove it"
        )
    if model.loss == "auto" and model.loss_options:
        return (
            'model.loss_options must be left out with model.loss = "auto", got '
            f"{', '.join(model.loss_options)}; name a loss"
        )
    if model.loss != "auto" and model.loss not in LOSSES and not is_path(model.loss):
        return (
            f"model.loss must be {', '.join(('auto', *LOSSES))}, or package.module:function, got "
            f"{model.loss!r}; correct the name"
        )
    for name in evaluation.metrics:
        if not is_metric(name) and not is_path(name):
            return (
                f"evaluation.metrics must be of {', '.join(METRICS)} (top5 for K = 5), or "
                f"package.module:function, got {name!r}; correct the name"
            )
    labels = [ACCURACY, *map(label_of, evaluation.metrics)]
    if evaluation.worst not in labels:
        return (
            f"evaluation.worst must be {' or '.join(labels)}, got {evaluation.worst!r}; add it to "
            "evaluation.metrics"
        )
    return ""
