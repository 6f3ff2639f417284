"""`[data]` of an experiment file: the data set, and how it is divided over the devices."""

import re
from collections.abc import Sequence
from itertools import pairwise
from os.path import isdir, join
from pathlib import PurePath
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from fairbed.coordinator.policy.config import PositiveInt, Section
from fairbed.testbed.experiment.published import PUBLISHED
from fairbed.wire.artifact import MAX_BUCKETS, MAX_CLASSES
from fairbed.wire.plugins import installed
from fairbed.wire.preparation import MAX_LENGTH, MAX_UNITS, TextTarget, TextUnit

FOLDER_NAMES: tuple[str, ...] = tuple(PUBLISHED)
"""Data sets that are read from a folder of the published files."""

NAMES: tuple[str, ...] = ("digits", "synthetic", "breast-cancer", "diabetes", *FOLDER_NAMES)
"""Data sets that ship with Fairbed, or that it can read from their published files."""

TABULAR_NAMES: tuple[str, ...] = (
    "synthetic",
    "breast-cancer",
    "diabetes",
    *(name for name, found in PUBLISHED.items() if len(found.x_shape) == 1 and not found.is_tokens),
)
"""Data sets whose examples are rows of numbers, not pictures."""

TOKEN_NAMES: tuple[str, ...] = tuple(name for name, found in PUBLISHED.items() if found.is_tokens)
"""Data sets of tokens."""

USER_NAMES: tuple[str, ...] = (
    "synthetic",
    *(name for name, found in PUBLISHED.items() if found.users_are),
)
"""Data sets that have users."""

MAX_TOKENS: Final = 1 << 24
"""Largest vocabulary of integer x; larger integers are no tokens."""

GROUP: Final = "fairbed.datasets"
"""Group of entry points, and of `fairbed.register`, of functions that return data."""

_PACKED = ("", ".gz", ".xz", ".bz2", ".zst", ".zip")

TABLES: Final = (".parquet", *(f"{kind}{end}" for end in _PACKED for kind in (".csv", ".tsv")))
"""Suffixes of tables; a table has a column of labels."""

TEXTS: Final = (".txt",)
"""Suffixes of texts."""

FILES: Final = (".npz", ".json", *TEXTS, *TABLES)
"""Suffixes of files that a source may be."""

NO_DATA: Final = "none"
"""Data set of a client that brings data of its own: devices get no shard."""

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

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
    """Divided by the users in the data: those of a data set, or `device` of your own data."""


class ConsecutiveClasses(Kind, frozen=True, kw_only=True, tag="consecutive-classes"):
    """Device k holds the classes k, k + 1, ... modulo their number, in unequal shares and sizes."""

    classes_per_device: PositiveInt = 5
    """Number of classes of each device."""
    sigma: Annotated[float, Meta(ge=0.0, le=5.0)] = 1.0
    """Of the log-normal sizes of the devices, and of the shares of their classes; 0: equal."""


Partition: TypeAlias = Iid | Dirichlet | ClassMix | ByClass | ConsecutiveClasses | Natural


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


UNLABELLED: Final = ("next", "x")
"""Targets that are no labels."""


class TextConfig(Section, frozen=True, kw_only=True):
    """`[data.text]`: how text becomes tokens."""

    unit: TextUnit = "characters"
    """bytes: of UTF-8; words: runs of letters and digits in lower case, and punctuation marks."""
    length: Annotated[int, Meta(ge=1, le=MAX_LENGTH)] = 80
    """Tokens of an example. A shorter one is padded with token 0; a longer text is cut into
    windows, or cut off if the texts have labels."""
    stride: Annotated[int, Meta(ge=1, le=MAX_LENGTH)] | None = None
    """Tokens from the start of a window to that of the next; not set: `length`, so that each token
    is predicted once."""
    words: Annotated[int, Meta(ge=1, le=MAX_UNITS)] | None = None
    """Most words of the vocabulary, the frequent ones; the others are token 1. Only for words; not
    set: 10,000."""
    column: str | None = None
    """Column of the texts, for tables; `data.label` is that of the labels."""

    def __post_init__(self) -> None:
        if self.words is not None and self.unit != "words":
            raise ValueError(
                f"words must be set for unit 'words' only, got {self.words} for {self.unit!r}; "
                "remove it"
            )


class MasksConfig(Section, frozen=True, kw_only=True):
    """`[data.masks]`: pictures in a folder `images` and masks of equal name in `masks`."""

    no_label: Annotated[int, Meta(ge=-1, le=255)] = 255
    """Value of a pixel without a label; -1: all pixels have one."""


class AudioConfig(Section, frozen=True, kw_only=True):
    """`[data.audio]`: recordings in a folder for each class."""

    samples: Annotated[int, Meta(ge=1, le=64 * MAX_LENGTH)] | None = None
    """Samples of an example: a longer recording is cut, a shorter one ends with zeros; not set:
    those of the longest."""


def is_source(text: str) -> bool:
    """Return whether a text is a file of data or `package.module:function`."""
    return text.lower().endswith(FILES) or _FUNCTION.fullmatch(text) is not None


class DataConfig(Section, frozen=True, kw_only=True):
    """`[data]`: the data set, and its partition over the devices."""

    dataset: str | None = None
    """A name of `fairbed data list`, such as digits, synthetic or fashion-mnist, or that of an
    installed or registered data set; none: devices get no data, as `training.client` has its own;
    not set: digits, unless `source` is set."""
    source: str | None = None
    """Your own data: a function `package.module:name`, the path of an `.npz`, `.csv`, `.tsv`,
    `.parquet`, `.txt` or `.json` (LEAF) file, or a folder of texts, pictures, pictures with masks,
    audio, LEAF's files, or with a table `clients.csv`."""
    label: str | None = None
    """Column of the labels, or of the targets of regression; only for tables (`.csv`, `.tsv`,
    `.parquet`), which need it."""
    device: str | None = None
    """Column of the users; only for tables; not set: the data have no users."""
    features: tuple[str, ...] = ()
    """Columns of a table that are features, whatever they hold: names, or patterns such as `p*`;
    `["*"]` is every column besides label and device. With `!` before it, a column is none. Without
    a name or pattern: every column but those that only number, name or repeat something."""
    categories: tuple[str, ...] = ()
    """Columns of a table that are one-hot encoded, by names or patterns; a text of up to 50
    different values is without being named. At most 1,000 categories."""
    target: TextTarget | None = None
    """Target of the model. label: the labels; x: the example itself (an autoencoder), so that no
    labels are needed; next: the next token of a text. Not set: next for a text without labels, and
    label otherwise."""
    classes: Annotated[int, Meta(ge=2, le=MAX_CLASSES)] | None = None
    """Number of classes of own data, 0 .. classes - 1, of which the data may lack some; not set:
    the classes that the data have."""
    vocabulary: Annotated[int, Meta(ge=2, le=MAX_TOKENS)] | None = None
    """Number of tokens of integer x, 0 .. vocabulary - 1; not set: the largest token and one."""
    buckets: Annotated[int, Meta(ge=2, le=MAX_BUCKETS)] | tuple[PositiveInt, ...] | None = None
    """Lengths to which sequences of tokens are padded, ascending, the last that of x; a number:
    so many, those with the least padding. Token 0 is padding. Not set: all have the length of x."""
    text: TextConfig | None = None
    """not set: the defaults for `.txt`; arrays, functions and tables have text only with it."""
    masks: MasksConfig | None = None
    """not set: the defaults for a folder with the folders `images` and `masks`."""
    audio: AudioConfig | None = None
    """not set: the defaults for a folder with `.wav` files in a folder for each class."""
    folder: str | None = None
    """Folder of the files; not set: `FAIRBED_DATA/<dataset>`, for `source` the current folder."""
    partition: Partition | None = None
    """not set: natural if the data have users, as `synthetic` and `heart` do, and iid otherwise."""
    test_fraction: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.2
    """Share of each device's examples that is held out for evaluation; at least one example."""
    validation_fraction: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Share of each device's other examples that no model is trained on, to choose constants; at
    least one, if two are left. Fewer than ten are a fold, of which each seed takes another one."""
    evaluated: Literal["test", "validation"] = "test"
    """The held-out examples on which models are evaluated. `validation`: no test example is read,
    as in the runs that choose the constants of a grid (`[tune]`)."""
    min_examples: Annotated[int, Meta(ge=2)] = 10
    """Fewest examples that a device may hold, including the held-out ones."""
    max_examples: PositiveInt | None = None
    """Number of examples to draw before they are divided; not set: all."""
    synthetic: SyntheticConfig | None = None
    """not set: the defaults; only for dataset = "synthetic"."""

    def __post_init__(self) -> None:
        if self.dataset is None and self.source is None:
            force_setattr(self, "dataset", "digits")
        self._check_name()
        if problem := self._misplaced():
            raise ValueError(problem)
        if self.evaluated == "validation" and not self.validation_fraction:
            raise ValueError(
                "validation_fraction must be above 0 with evaluated = 'validation', got 0; set "
                "validation_fraction = 0.2"
            )
        if self.is_table and self.label is None and not (self.text and self.target in UNLABELLED):
            raise ValueError(
                f"label must name the column of the labels in {self.source}, got none; set "
                'label = "COLUMN"'
            )

    def _check_name(self) -> None:
        if self.dataset is not None and self.source is not None:
            raise ValueError(
                f"dataset and source must not both be set, got {self.dataset!r} and "
                f"{self.source!r}; remove one"
            )
        if self.source is not None:
            suffix = PurePath(self.source).suffix
            is_other = suffix in (".npy", ".zip", ".gz", ".pt", ".pkl", ".wav")
            if not self.source or (is_other and not self.is_table):
                raise ValueError(
                    "source must be package.module:function, end in .npz, .csv, .tsv, .parquet, "
                    f".txt, .json, or be a folder, got {self.source!r}; convert the file, or write "
                    "a function that reads it"
                )
        elif self.name not in (*NAMES, NO_DATA) and self.name not in installed(GROUP):
            names = (*NAMES, *sorted(installed(GROUP)))
            todo = "own data are set as source"
            if is_source(self.name):
                todo = f'write source = "{self.name}" instead'
            raise ValueError(f"dataset must be {', '.join(names)}, got {self.dataset!r}; {todo}")

    def _misplaced(self) -> str:
        """Return why a key does not fit the data; empty if all fit."""
        name, is_own = self.name, self.is_own
        for key in ("partition", "max_examples", "folder") if self.has_none else ():
            if (found := getattr(self, key)) is not None:
                return f"{key} must not be set for dataset 'none', got {found!r}; remove it"
        for key in ("label", "device", "features", "categories"):
            if (found := getattr(self, key)) not in (None, ()) and not self.is_table:
                shown = repr(found if isinstance(found, str) else list(found))
                return (
                    f"{key} must not be set for {name!r}, got {shown}; remove it, "
                    "only .csv, .tsv and .parquet have columns"
                )
        if self.folder is not None and not (is_own or self.dataset in FOLDER_NAMES):
            return (
                f"folder must not be set for dataset {name!r}, got {self.folder!r}; "
                "remove it, this data set is not read from a folder"
            )
        for key in ("target", "classes", "vocabulary", "buckets", "text", "masks", "audio"):
            if getattr(self, key) is not None and not is_own and key != "target":
                return f"{key} must not be set for dataset {name!r}, which has its own; remove it"
        is_folder = self.source is not None and not self.source.lower().endswith(FILES)
        for key in ("masks", "audio"):
            if getattr(self, key) is not None and (self.is_function or not is_folder):
                return f"{key} must be set for a folder only, got {name!r}; remove it"
        parts = [part for part in ("text", "masks", "audio") if getattr(self, part) is not None]
        if len(parts) > 1:
            return f"one of text, masks and audio may be set, got {' and '.join(parts)}; keep one"
        if isinstance(self.buckets, tuple) and (problem := _bucket_problem(self.buckets)):
            return problem
        if self.target == "next" and not (self.text or is_folder or self.is_text):
            return f"target must be 'next' for texts only, got {name!r}; add [data.text]"
        if self.text is not None and self.is_table != (self.text.column is not None):
            needs = "must name the column of the texts" if self.is_table else "is for tables only"
            todo = "set" if self.is_table else "remove"
            return f"text.column {needs}, got {self.text.column!r} for {name!r}; {todo} it"
        if self.synthetic is not None and self.dataset != "synthetic":
            return (
                f'synthetic must not be set for {name!r}; remove it, or set dataset = "synthetic"'
            )
        if isinstance(self.partition, Natural) and not (is_own or self.dataset in USER_NAMES):
            return (
                f"partition must not be 'natural' for dataset {name!r}, which has no "
                "users; use iid, dirichlet, class-mix, by-class or consecutive-classes"
            )
        return ""

    @property
    def name(self) -> str:
        """The data set, or the source of the user's own data."""
        return self.source or self.dataset or "digits"

    @property
    def has_none(self) -> bool:
        """Whether devices get no data."""
        return self.dataset == NO_DATA

    @property
    def is_own(self) -> bool:
        """Whether the data are no data set that ships."""
        return self.dataset not in (*NAMES, NO_DATA)

    @property
    def is_table(self) -> bool:
        """Whether the data are the rows of a table."""
        return self.source is not None and self.source.lower().endswith(TABLES)

    @property
    def is_text(self) -> bool:
        """Whether the data are one text."""
        return self.source is not None and self.source.lower().endswith(TEXTS)

    @property
    def is_function(self) -> bool:
        """Whether a function of the user returns the data."""
        if self.source is None:
            return self.is_own
        return not self.source.lower().endswith(FILES) and bool(_FUNCTION.fullmatch(self.source))


def _bucket_problem(lengths: tuple[int, ...]) -> str:
    """Return why lengths cannot be buckets; empty if they can."""
    if not 2 <= len(lengths) <= MAX_BUCKETS:
        return (
            f"buckets must be 2 to {MAX_BUCKETS} lengths, got {len(lengths)}; remove the key for "
            "one length"
        )
    for before, length in pairwise(lengths):
        if length <= before:
            return f"buckets must increase, got {length} after {before}; sort them"
    return ""


def data_config(
    what: str,
    *,
    label: str | None = None,
    device: str | None = None,
    folder: str | None = None,
    features: Sequence[str] = (),
    categories: Sequence[str] = (),
) -> DataConfig:
    """Return the section of a data set by its name, or of the user's own data.

    Args:
        what: Name of a data set, or what `source` may be.
        label: Column of the labels.
        device: Column of the users.
        folder: Folder of the files.
        features: Names or patterns of the columns that are features.
        categories: Names or patterns of the columns that are one-hot encoded.

    Raises:
        ValueError: There is no such data set, or a key does not fit it.
    """
    is_own = what not in NAMES and (is_source(what) or isdir(join(folder or "", what)))
    return DataConfig(
        dataset=None if is_own else what,
        source=what if is_own else None,
        label=label,
        device=device,
        folder=folder,
        features=tuple(features),
        categories=tuple(categories),
    )
