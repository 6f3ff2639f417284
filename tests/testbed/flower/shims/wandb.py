"""Stands in for `wandb`, which sends: calls are printed."""

from typing import Any


def init(**settings: Any) -> None:
    """Print the settings."""
    print("wandb.init", sorted(settings))  # noqa: T201


def log(values: dict[str, Any], **settings: Any) -> None:
    """Print the values."""
    print("wandb.log", sorted(values), settings)  # noqa: T201


def define_metric(*names: Any, **settings: Any) -> None:
    """Do nothing."""
