"""`[data]` of an experiment file: the data set, and how it is divided over the devices."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from fairbed.coordinator.policy.config import PositiveInt, Section

NAMES: tuple[str, ...] = ("digits", "synthetic", "fashion-mnist", "mnist", "cifar10")
"""Data sets with a name; another data set is the path of an `.npz` file."""

FOLDER_NAMES: tuple[str, ...] = ("fashion-mnist", "mnist", "cifar10")
"""Data sets that are read from a folder of downloaded files."""

Concentration: TypeAlias = Annotated[float, Meta(gt=0.0, le=1e6)]
StandardDeviation: TypeAlias = Annotated[float, Meta(ge=0.0, le=1e3)]


class Kind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of the partitions; the key `kind` selects one."""


class Iid(Kind, frozen=True, kw_only=True, tag="iid"):
    """All devices draw from the same mixture; their sizes differ by at most one example."""


class Dirichlet(Kind, frozen=True, kw_only=True, tag="dirichlet"):
    """Each class is divided over the devices by its own Dirichlet draw."""

    alpha: Concentration = 0.5
    """Concentration: with a smaller value, fewer devices hold most of a class."""


class ClassMix(Kind, frozen=True, kw_only=True, tag="class-mix"):
    """Equal numbers of examples per device, each in its own Dirichlet mixture of the classes."""

    gamma: Annotated[float, Meta(ge=0.01, le=1e6)] = 1.0
    """Total concentration of all classes: at 1 a device holds one to three classes, at 100 all."""


class ByClass(Kind, frozen=True, kw_only=True, tag="by-class"):
    """Each device holds a fixed number of classes."""

    classes_per_device: PositiveInt = 2
    """Number of classes of each device."""


class Natural(Kind, frozen=True, kw_only=True, tag="natural"):
    """Divided by the users in the data: those of `synthetic`, or `device` of an `.npz` file."""


Partition: TypeAlias = Iid | Dirichlet | ClassMix | ByClass | Natural


class SyntheticConfig(Section, frozen=True, kw_only=True):
    """`[data.synthetic]`: options of Synthetic(alpha, beta)."""

    alpha: StandardDeviation = 1.0
    """Standard deviation of the users' model means (papers print it as a variance)."""
    beta: StandardDeviation = 1.0
    """Standard deviation of the users' feature means (papers print it as a variance)."""
    users: Annotated[int, Meta(ge=1, le=100_000)] = 100
    """Number of users; each is the data of one device."""
    variant: Literal["non-iid", "iid", "hybrid"] = "non-iid"
    """iid: one model for all users (beta must be 0); hybrid: the first half of the users is iid."""

    def __post_init__(self) -> None:
        if self.variant == "iid" and self.beta != 0.0:
            raise ValueError(
                f"beta must be 0 for variant 'iid', got {self.beta}; set beta = 0.0, or choose "
                "variant non-iid or hybrid"
            )


class DataConfig(Section, frozen=True, kw_only=True):
    """`[data]`: the data set, and its partition over the devices."""

    dataset: str = "digits"
    """digits, synthetic, fashion-mnist, mnist, cifar10, or the path of an `.npz` file."""
    folder: str | None = None
    """Folder of the files; not set: `FAIRBED_DATA/<dataset>`, for `.npz` the current folder."""
    partition: Partition | None = None
    """not set: natural if the data have users, as `synthetic` does, and iid otherwise."""
    test_fraction: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.2
    """Share of each device's examples that is held out for evaluation; at least one example."""
    min_examples: Annotated[int, Meta(ge=2)] = 10
    """Fewest examples that a device may hold, including the held-out ones."""
    max_examples: PositiveInt | None = None
    """Number of examples to draw before they are divided; not set: all."""
    synthetic: SyntheticConfig | None = None
    """not set: the defaults; only for dataset = "synthetic"."""

    def __post_init__(self) -> None:
        if self.dataset not in NAMES and not self.is_npz:
            raise ValueError(
                f"dataset must be a known name or end in .npz, got {self.dataset!r}; use "
                f"{', '.join(NAMES)} or the path of an .npz file"
            )
        if self.folder is not None and not (self.dataset in FOLDER_NAMES or self.is_npz):
            raise ValueError(
                f"folder must not be set for dataset {self.dataset!r}, got {self.folder!r}; "
                "remove it, this data set is not read from a folder"
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
        """Whether the data are a user's own file."""
        return self.dataset.endswith(".npz")
