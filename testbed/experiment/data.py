"""`[data]` of an experiment file: which examples there are and which device holds which."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from fairbed.coordinator.policy.config import PositiveInt, Section

NAMES: tuple[str, ...] = ("digits", "synthetic", "fashion-mnist", "mnist", "cifar10")
"""Data sets known by name; anything else is the path of an `.npz` file."""

FOLDER_NAMES: tuple[str, ...] = ("fashion-mnist", "mnist", "cifar10")
"""Those that are read from a folder of downloaded files."""

Concentration: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e6)]
StandardDeviation: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e3)]


class Kind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the ways to divide data; `kind` in the file says which."""


class Iid(Kind, frozen=True, kw_only=True, tag="iid"):
    """Every device draws from the same mixture; sizes differ by at most one example."""


class Dirichlet(Kind, frozen=True, kw_only=True, tag="dirichlet"):
    """Each class is divided over the devices by its own Dirichlet draw."""

    alpha: Concentration = 0.5
    """Concentration: the smaller, the fewer devices hold most of a class."""


class ClassMix(Kind, frozen=True, kw_only=True, tag="class-mix"):
    """Devices hold equally many examples, each in its own Dirichlet mixture of the classes."""

    gamma: Annotated[float, Meta(ge=0.01, le=1e6)] = 1.0
    """Concentration, spread over the classes: at 1 a device holds one to three, at 100 all."""


class ByClass(Kind, frozen=True, kw_only=True, tag="by-class"):
    """Each device holds a fixed number of classes."""

    classes_per_device: PositiveInt = 2


class Natural(Kind, frozen=True, kw_only=True, tag="natural"):
    """The users that the data come with: those of `synthetic`, or `device` of an `.npz` file."""


Partition: TypeAlias = Iid | Dirichlet | ClassMix | ByClass | Natural


class SyntheticConfig(Section, frozen=True, kw_only=True):
    """`[data.synthetic]`: the options of Synthetic(alpha, beta)."""

    alpha: StandardDeviation = 1.0
    """Standard deviation of the users' model means (papers print it as a variance)."""
    beta: StandardDeviation = 1.0
    """Standard deviation of the users' feature means (papers print it as a variance)."""
    users: Annotated[int, Meta(ge=1, le=100_000)] = 100
    variant: Literal["non-iid", "iid", "hybrid"] = "non-iid"
    """iid: one model for all users (beta must be 0); hybrid: the first half of them is iid."""

    def __post_init__(self) -> None:
        if self.variant == "iid" and self.beta != 0.0:
            raise ValueError(
                f"beta must be 0 for variant 'iid', got {self.beta}; set beta = 0.0, or choose "
                "variant non-iid or hybrid"
            )


class DataConfig(Section, frozen=True, kw_only=True):
    """`[data]`."""

    dataset: str = "digits"
    """digits, synthetic, fashion-mnist, mnist, cifar10, or the path of an `.npz` file."""
    folder: str | None = None
    """Where the files are; None means `FAIRBED_DATA/<dataset>`, for `.npz` the current folder."""
    partition: Partition | None = None
    """None means natural where the data come with users (`synthetic`), else iid."""
    test_fraction: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.2
    """Share of each device's examples that is held out; at least one example."""
    min_examples: Annotated[int, Meta(ge=2)] = 10
    """Fewest examples a device may hold, held-out ones included."""
    max_examples: PositiveInt | None = None
    """Draw this many examples before dividing them; None takes all."""
    synthetic: SyntheticConfig | None = None
    """None means the defaults; only for dataset = "synthetic"."""

    def __post_init__(self) -> None:
        if self.dataset not in NAMES and not self.is_npz:
            raise ValueError(
                f"dataset must be a known name or end in .npz, got {self.dataset!r}; use "
                f"{', '.join(NAMES)} or the path of an .npz file"
            )
        if self.folder is not None and not (self.dataset in FOLDER_NAMES or self.is_npz):
            raise ValueError(
                f"folder must not be set for dataset {self.dataset!r}, got {self.folder!r}; "
                "remove it, these data come from no folder"
            )
        if self.synthetic is not None and self.dataset != "synthetic":
            raise ValueError(
                f"synthetic must not be set for dataset {self.dataset!r}; remove it, or set "
                'dataset = "synthetic"'
            )
        has_users = self.dataset == "synthetic" or self.is_npz
        if isinstance(self.partition, Natural) and not has_users:
            raise ValueError(
                f"partition must not be 'natural' for dataset {self.dataset!r}, which has no "
                "users; use iid, dirichlet, class-mix or by-class"
            )

    @property
    def is_npz(self) -> bool:
        """Whether the data are the user's own file."""
        return self.dataset.endswith(".npz")
