"""`[flower]`: an app of Flower whose strategy drives the rounds."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from fairbed.coordinator.policy.config import Section

Merging = Literal["strategy", "ours"]


class FlowerConfig(Section, frozen=True, kw_only=True):
    """`[flower]`: a Flower app that trains on the devices of the run, as it is."""

    app: Annotated[str, Meta(min_length=1)] | None = None
    """Folder with its `pyproject.toml`, or a module with a ServerApp and a ClientApp; relative to
    this file. `fairbed run --flower PATH` sets it."""
    python: Annotated[str, Meta(min_length=1)] | None = None
    """Interpreter with flwr and the packages of the app, for both sides on this machine; not set:
    the environment that `fairbed flower setup` made for the app."""
    config: dict[str, Any] = field(default_factory=dict)
    """Values of the configuration of the app that replace those of its `pyproject.toml`."""
    node_config: dict[str, Any] = field(default_factory=dict)
    """Values of the configuration of every node, beside `partition-id` and `num-partitions`."""
    merge: Merging = "strategy"
    """The strategy of the app merges, or our rule of `[aggregation]` merges its float arrays."""
    weighted_by: Annotated[str, Meta(min_length=1, max_length=64)] = "num-examples"
    """Metric of a reply with its number of examples."""
    loss_metric: Annotated[str, Meta(max_length=64)] = ""
    """Metric of a reply that is the loss of the model before its training, for a rule or a policy
    that needs it; empty: there is none."""
    timeout_s: Annotated[float, Meta(gt=0.0, le=1e7)] = 600.0
    """Longest time in which the ServerApp does nothing between two steps, or only polls the nodes,
    seconds."""
    poll_s: Annotated[float, Meta(gt=0.0, le=1e6)] = 5.0
    """With a policy of ours, longest time in which the strategy only polls the nodes of its cohort,
    seconds; an app that waits for nodes is reported at twice this interval."""

    @property
    def application(self) -> str:
        """The key that names an app; empty without one."""
        return "app" if self.app is not None else ""
