"""`[fleet.malicious]` of an experiment file: which devices are malicious, and how."""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from fairbed.coordinator.policy.config import NonNegativeFloat, PositiveFloat, Ratio, Section
from fairbed.testbed.emulation.malicious import Attack, AttackKind
from fairbed.testbed.experiment.datasets.loading import Draw, generator

Kind: TypeAlias = Literal[
    "label-poisoning",
    "random-update",
    "model-replacement",
    "free-rider",
    "replayed-update",
    "nan",
    "lying-loss",
    "lying-context",
    "A1",
    "A2",
    "A3",
]

NAMES_IN_SOURCE: dict[str, AttackKind] = {
    "A1": "label-poisoning",
    "A2": "random-update",
    "A3": "model-replacement",
}
"""The attacks by their names in the paper of Ditto."""

ONLY_FOR: dict[str, tuple[AttackKind, float | None]] = {
    "scale": ("model-replacement", None),
    "loss": ("lying-loss", None),
    "speed": ("lying-context", None),
    "claims_cold": ("lying-context", False),
    "honest_exchanges": ("lying-context", 0),
}
"""The kind that each option belongs to, and its value if it is not given."""

ROUNDING = 1e-9
"""Keeps 0.3 x 10 devices at 3: the product in floating point may be just below."""


class MaliciousConfig(Section, frozen=True, kw_only=True):
    """`[fleet.malicious]`: malicious devices of a group, emulated or replayed.

    Give `share`, `count` or `names`. The coordinator does not know which devices are malicious.
    """

    kind: Kind
    """Behaviour of the malicious devices; A1 is label-poisoning, A2 random-update, A3
    model-replacement."""
    share: Ratio | None = None
    """Share of the devices of the group, rounded down."""
    count: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """Number of devices of the group."""
    names: tuple[str, ...] = ()
    """Names of devices of the group."""
    scale: PositiveFloat | None = None
    """model-replacement: factor of the update; not set: number of updates that are merged into a
    version."""
    loss: NonNegativeFloat | None = None
    """lying-loss: the loss that is reported, nats; not set: 1e6."""
    speed: PositiveFloat | None = None
    """lying-context: factor of the free cores and of the link rates that are reported; not set: 1
    with `claims_cold`, 10 without."""
    claims_cold: bool = False
    """lying-context: report a cold start in every exchange."""
    honest_exchanges: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """lying-context: exchanges in which a device trains and is honest before its first lie."""

    def __post_init__(self) -> None:
        given = [key for key in ("share", "count") if getattr(self, key) is not None]
        given += ["names"] if self.names else []
        if len(given) != 1:
            raise ValueError(
                "malicious must have one of share, count and names, got "
                f"{' and '.join(given) or 'none'}; give one, such as share = 0.2"
            )
        for key, (kind, default) in ONLY_FOR.items():
            if getattr(self, key) != default and self.attack_kind != kind:
                raise ValueError(
                    f'malicious.{key} must be given with kind = "{kind}" only, got kind '
                    f'"{self.kind}"; remove {key}'
                )

    @property
    def attack_kind(self) -> AttackKind:
        """The kind by its own name."""
        return NAMES_IN_SOURCE.get(self.kind, self.kind)  # type: ignore[arg-type]  # A1..A3 are keys

    def attack(self, updates_per_version: int) -> Attack:
        """Return the behaviour of one device, with the defaults of its kind.

        Args:
            updates_per_version: m, the planned number of updates that are merged into a version.
        """
        speed = self.speed or (1.0 if self.claims_cold else 10.0)
        return Attack(
            kind=self.attack_kind,
            scale=float(updates_per_version) if self.scale is None else self.scale,
            loss=1e6 if self.loss is None else self.loss,
            speed=speed,
            claims_cold=self.claims_cold,
            honest_exchanges=self.honest_exchanges,
        )

    def size(self, devices: int) -> int:
        """Return the number of malicious devices among the devices of a group."""
        if self.share is not None:
            return int(self.share * devices + ROUNDING)
        return len(set(self.names)) if self.count is None else self.count


def draw_attacks(
    groups: Sequence[MaliciousConfig | None],
    names: Sequence[Sequence[str]],
    seed: int,
    updates_per_version: int,
) -> dict[str, Attack]:
    """Return the behaviour of each malicious device, by its name.

    Each group is drawn once, from its own random stream (seed, `Draw.MALICIOUS`, its number), as
    the beginning of a random order: the set of a smaller share is part of that of a larger one.

    Args:
        groups: `malicious` of each `[[fleet]]`.
        names: Names of the devices of each group.
        seed: The seed `malicious`.
        updates_per_version: m of `model-replacement`.

    Raises:
        ValueError: A group has no device of a name, or fewer devices than `count`.
    """
    attacks = {}
    for number, (config, members) in enumerate(zip(groups, names, strict=True)):
        if config is None:
            continue
        where, size = f"fleet[{number}].malicious", config.size(len(members))
        if unknown := [name for name in config.names if name not in members]:
            listed = ", ".join(members[:10]) + (", ..." if len(members) > 10 else "")
            raise ValueError(
                f"{where}.names: must be devices of this group, got {unknown[0]!r}; "
                f"the group has {listed}"
            )
        if size > len(members):
            raise ValueError(
                f"{where}.count: must be at most the {len(members)} devices of the group, "
                f"got {size}; lower it"
            )
        order = generator(seed, Draw.MALICIOUS, number).permutation(len(members))
        drawn = config.names or [members[at] for at in sorted(order[:size].tolist())]
        attacks.update(dict.fromkeys(drawn, config.attack(updates_per_version)))
    return attacks
