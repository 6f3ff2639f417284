"""Every selector that Fairbed has, under the settings that change what it does."""

from fairbed.coordinator.policy.config import OortConfig, SelectionConfig

CONFIGS = {
    "uniform": SelectionConfig(policy="uniform"),
    "weighted": SelectionConfig(policy="weighted", weights=(1.0, 4.0, 0.5, 2.0)),
    "weighted, n_k": SelectionConfig(policy="weighted"),
    "fedcs": SelectionConfig(policy="fedcs", deadline_s=1e6),
    "fedcs, tight": SelectionConfig(policy="fedcs", deadline_s=0.6),
    "fedcs, sequential": SelectionConfig(policy="fedcs", deadline_s=1.0, uploads="sequential"),
    "oort": SelectionConfig(policy="oort"),
    "oort, eager": SelectionConfig(
        policy="oort", oort=OortConfig(exploration=0.4, exploration_min=0.4, pacer_step=2)
    ),
    "rpow-d": SelectionConfig(policy="power-of-choice", candidates=4),
    "rpow-d, all": SelectionConfig(policy="power-of-choice", candidates=100),
    "pow-d": SelectionConfig(policy="power-of-choice", candidates=5, variant="pow-d"),
    "cpow-d": SelectionConfig(policy="power-of-choice", variant="cpow-d"),
    "fastest-known": SelectionConfig(policy="fastest-known"),
    "fedcs-oracle": SelectionConfig(policy="fedcs-oracle", deadline_s=1e6),
    "rbcs-f-known": SelectionConfig(policy="rbcs-f-known"),
    "rbcs-f": SelectionConfig(policy="rbcs-f"),
    "rbcs-f, V=0": SelectionConfig(policy="rbcs-f", V=0.0),
    "rbcs-f, theory": SelectionConfig(policy="rbcs-f", alpha="theory", lcb_floor="none"),
    "rbcs-f, aggregated": SelectionConfig(policy="rbcs-f", queue_counts="aggregated", z_max=2.0),
    "plug-in": SelectionConfig(
        policy="examples.longest_waiting:LongestWaiting", options={"patience": 3}
    ),
}
