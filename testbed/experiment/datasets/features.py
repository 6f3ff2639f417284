"""Decide what each column of a table is: numbers, categories, or nothing that a model may use.

A column that only numbers the rows or the users, has one value, repeats the label or holds names
of single examples is left out. What is left out depends on the file only, so that a replay, a run
and a resumed run agree. Medians, and the categories that a model knows, come from training rows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints

MAX_AUTOMATIC = 50
"""Most different texts of a column that is one-hot encoded without being named."""

NO_VALUE = "no value"
"""Why a column without any value is left out."""

MAX_CATEGORIES = 1_000
"""Most columns of x that one column of categories becomes."""

MIN_ROWS = 8
"""With fewer rows, values in order or a match with the label may be chance."""

SURPRISE = 6.9
"""-ln 0.001: of n whole numbers drawn from a range r, m = n (n - 1) / 2r pairs are equal on
average, and none with a probability of about exp(-m), which is below 0.001 if m is larger."""

DEVIATIONS = 3.1
"""Fewer equal pairs than the mean by this number of its standard deviations, sqrt(m), have a
probability below 0.001."""

MAX_REPEATED = 0.1
"""Largest share of rows with a repeated identifier: rows that the file has twice."""

MATCHES = 10
"""Rows that must agree beyond the first of each class: two values agree by chance in 0.001 of
cases."""

MIN_USERS = 5
"""With fewer users, consecutive numbers such as their ages may be chance."""

EXACT = 1 << 53
"""Whole numbers beyond it are not exact as floats, and no measurement has so many digits."""

LARGE = 1 << 23
"""float32 has no fractions above it."""

FAR = 1e6
"""A repeated value so many times as large as the others is no measurement."""

ROUNDED = 1e-4
"""Rounding by a larger share of the range is stated."""

LONG = 1e9
"""Whole numbers of ten digits or more are seldom measurements if all differ."""

FIRST_DAY, LAST_DAY = 1900_01_01, 2100_12_31

_INDEX = re.compile(
    r"(unnamed: *\d+(\.\d+)?|index|level_\d+|__index_level_\d+__|row\.?names?)", re.I
)
_NUMBERS_ROWS = re.compile(r"(unnamed: *\d+(\.\d+)?|__index_level_\d+__)", re.I)
_IDENTIFIER = re.compile(r"(.*[_\W])?(id|ids|uuid|guid|key|idx|index|nr|no|num|number)", re.I)
_CAMEL = re.compile(r".*[a-z](Id|ID|Key|Idx|Nr|No)")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?"
    r"|\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?"
)
_QUANTITY = re.compile(
    r"([$€£¥] ?)?(?P<n>[-+]?\d[\d,.' ]*)(e[-+]?\d+)?\s*(?P<unit>[a-zµμ°²³/]{1,6}|%|[$€£¥])?", re.I
)
_SENTINEL = re.compile(r"-?(9{2,}|8{2,})")
_IDENTIFIES = "identifies the examples: {:,} different whole numbers in {:,} rows"

Kind: TypeAlias = Literal["number", "whole", "text", ""]
"""Empty: it was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A column of a table, and what is done with it."""

    name: str
    kind: Kind
    low: float | None = None
    """Lowest number; None for text, and without a value."""
    high: float | None = None
    """Highest number."""
    texts: str = ""
    """The first texts, and how many there are."""
    missing: int
    """Rows without a value."""
    use: str
    """`number`, `one-hot of 5`, or `left out: ` and the reason."""
    width: int
    """Columns of x: 1 for a number, the categories of a one-hot, 0 if left out."""
    categories: tuple[str, ...] = ()
    """Of a one-hot, in the order of its columns of x."""

    @property
    def has_values(self) -> bool:
        """A row has a value."""
        return self.low is not None or bool(self.texts)


@dataclass(frozen=True, slots=True)
class Groups:
    """The classes or users of the rows, as what a column may repeat."""

    key: str
    """`label` or `device`."""
    codes: Ints
    """Number of the group of each row, shape (n,)."""
    targets: Floats | None = None
    """Labels that are numbers, shape (n,); None otherwise."""

    @property
    def n(self) -> int:
        """Number of groups."""
        return int(self.codes.max()) + 1

    @property
    def are_few(self) -> bool:
        """A group has two rows or more, on average."""
        return 2 * self.n <= len(self.codes)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a column is a feature."""

    reason: str = ""
    """Why it is left out; empty if it is used."""
    note: str = ""
    """Why it is perhaps none, though it is used; empty: no doubt."""
    is_of_values: bool = False
    """The note is about values, which matters for a column that the user has named, too."""
    indicates: int = -1
    """The one class that it marks with a value of its own; -1: no such class."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the columns of a table became x, and what depends on the training rows."""

    features: tuple[Feature, ...] = ()
    gaps: Bools | None = None
    """Values of x that were missing in the file, shape of x; None if there are none."""
    unseen: tuple[Ints, Ints] | None = None
    """Rows and columns of x of categories that no training row has; None before the fit."""

    @property
    def one_hot(self) -> Ints:
        """Columns of x that stand for a category."""
        ends = np.cumsum([feature.width for feature in self.features], dtype=np.int64)
        return np.array(
            [
                column
                for feature, end in zip(self.features, ends, strict=True)
                if feature.categories
                for column in range(end - feature.width, end)
            ],
            np.int64,
        )

    def columns_of_x(self, most: int) -> str:
        """Return the names of the columns of x in at most `most` characters."""
        names = [
            name
            for feature in self.features
            for name in (
                [f"{feature.name}={category}" for category in feature.categories]
                or [feature.name] * feature.width
            )
        ]
        text = ", ".join(names)
        end = f", ... ({len(names):,} in all)"
        return text if len(text) <= most else text[: most - len(end)] + end

    def take(self, rows: Ints) -> "Encoding":
        """Return the encoding of some rows."""
        return replace(self, gaps=None if self.gaps is None else self.gaps[rows])

    def fitted(self, x: NDArray[Any], rows: Ints) -> tuple[NDArray[Any], "Encoding"]:
        """Return x as the training rows define it; x itself if they change nothing.

        A missing number is the median of the training rows that have it, and 0 if none has. A
        category that no training row has is all zeros, as a missing one.

        Args:
            x: Examples, shape (n, columns); not changed.
            rows: The training rows of all devices, shape (m,).
        """
        one_hot, train = self.one_hot, x[rows]
        unknown = one_hot[~train[:, one_hot].any(axis=0)]
        where = np.nonzero(x[:, unknown])
        unseen = (where[0], unknown[where[1]])
        if self.gaps is None and not len(unseen[0]):
            return x, self
        x = x.copy()
        x[unseen] = 0.0
        if self.gaps is not None:
            absent = self.gaps[rows]
            for column in np.flatnonzero(self.gaps.any(axis=0)):
                known = train[~absent[:, column], column]
                x[self.gaps[:, column], column] = np.median(known) if len(known) else 0.0
        return x, replace(self, unseen=unseen)

    def as_read(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return x as before the fit, NaN where a value was missing."""
        if self.gaps is None and self.unseen is None:
            return x
        x = x.copy()
        if self.gaps is not None:
            x[self.gaps] = np.nan
        if self.unseen is not None:
            x[self.unseen] = 1.0
        return x


def judge_numbers(
    name: str, values: Floats, groups: Sequence[Groups], *, is_index: bool = False
) -> Verdict:
    """Return whether a column of numbers is a feature.

    Args:
        name: Name of the column.
        values: Its values, shape (n,); NaN is missing.
        groups: The classes, and the users if there are any.
        is_index: pandas has written it as the index of its table.
    """
    known = ~np.isnan(values)
    found = values[known]
    if reason := _by_name_or_constant(name, len(np.unique(found[:1000])), found, is_index):
        return Verdict(reason)
    if len(found) < MIN_ROWS:
        return Verdict()
    is_whole = bool((found == np.round(found)).all())
    verdict = _repeats(values, known, groups)
    if verdict.reason:
        return verdict
    if is_whole and (reason := _counts(name, values, known, groups)):
        return Verdict(reason)
    if verdict != Verdict():
        return verdict
    note = _odd_values(found, is_whole)
    return Verdict(note=note or _doubt(name, found, is_whole), is_of_values=bool(note))


def judge_text(
    name: str,
    codes: Ints,
    categories: Sequence[str],
    groups: Sequence[Groups],
    *,
    is_named: bool = False,
    is_index: bool = False,
) -> Verdict:
    """Return whether a column of text is a feature.

    Args:
        name: Name of the column.
        codes: Number of the category of each row, shape (n,); -1 is missing. Only the first rows
            if there are too many categories.
        categories: The texts.
        groups: The classes, and the users if there are any.
        is_named: The user has named it as a column of categories.
        is_index: pandas has written it as the index of its table.
    """
    known, distinct = codes >= 0, len(categories)
    n = int(known.sum())
    if reason := _by_name_or_constant(name, distinct, codes[known], is_index):
        return Verdict(reason)
    if n < MIN_ROWS:
        return Verdict()
    if len(codes) == len(groups[0].codes):
        values = np.where(known, codes, np.nan).astype(np.float64)
        verdict = _repeats(values, known, groups)
        if verdict != Verdict():
            return verdict
    if is_named:
        return Verdict()
    if sum(bool(_DATE.fullmatch(text)) for text in categories) > 0.9 * len(categories):
        return Verdict("dates or times, which are no numbers")
    if 2 * distinct > n:
        return Verdict(f"identifies the examples: {distinct:,} different texts in {n:,} rows")
    note = ""
    folded: dict[str, str] = {}
    for text in categories if distinct <= MAX_CATEGORIES else ():
        other = folded.setdefault(" ".join(text.casefold().split()), text)
        if other != text:
            note = f"has {other!r} and {text!r} as two categories; correct one if they are the same"
    return Verdict(note=note)


def unit_of(texts: Sequence[str]) -> str | None:
    """Return an example of numbers with a unit, a currency or separators; None if most are not."""
    found, units = [], set[str]()
    for text in texts:
        match = _QUANTITY.fullmatch(text)
        if match:
            found.append(text)
            units.add(match["unit"] or "")
    if len(found) < 2 or len(found) < 0.9 * len(texts) or len(units - {""}) > 3:
        return None
    return found[0]


def _by_name_or_constant(name: str, distinct: int, found: NDArray[Any], is_index: bool) -> str:
    if not len(found):
        return NO_VALUE
    if _NUMBERS_ROWS.fullmatch(name):
        return "no name, as the index that pandas writes"
    if is_index:
        return "the index of the table in pandas"
    if distinct == 1 and bool((found == found[0]).all()):
        return "only one value"
    return ""


def _repeats(values: Floats, known: Bools, groups: Sequence[Groups]) -> Verdict:
    """Return whether a column has one value per class or user, and is a copy of them."""
    verdict = Verdict()
    for group in groups:
        if not group.are_few:
            verdict = _follows(values, known, group)
        elif (per_group := _values_of_groups(values, known, group)) is not None:
            verdict = _copies(per_group, group)
        elif group.key == "label" and (n := _decides(values, known, group)):
            verdict = Verdict(note=f"decides the label: each of its {n:,} values has one label")
        if verdict != Verdict():
            return verdict
    return verdict


def _values_of_groups(values: Floats, known: Bools, group: Groups) -> Floats | None:
    """Return the value that all rows of a group have, shape (groups,); None if they differ."""
    codes, values = group.codes[known], values[known]
    per_group = np.full(group.n, np.nan)
    for part in (slice(1000), slice(None)):  # nearly every other column fails in its first rows
        per_group[codes[part]] = values[part]
        if (per_group[codes[part]] != values[part]).any():
            return None
    seen = int((~np.isnan(per_group)).sum())
    return per_group if seen > 1 and len(values) - seen >= MATCHES else None


def _copies(per_group: Floats, group: Groups) -> Verdict:
    """Return what a column is that has one value per group."""
    found = per_group[~np.isnan(per_group)]
    distinct, counts = np.unique(found, return_counts=True)
    is_copy = len(distinct) == len(found)
    if group.key == "device":
        span = float(distinct[-1] - distinct[0])
        is_number = (distinct == np.round(distinct)).all() and (
            _pairs(len(found), span) > SURPRISE
            or (span == len(found) - 1 and (distinct[0] in (0, 1) or len(found) >= MIN_USERS))
        )
        return Verdict("repeats data.device" if is_copy and is_number else "")
    if is_copy:
        return Verdict("repeats the label, one value for each class")
    if len(distinct) == 2 and counts.min() == 1 and len(found) == group.n:
        marked = np.flatnonzero(per_group == distinct[np.argmin(counts)])
        return Verdict(indicates=int(marked[0]))
    return Verdict(note="follows from the label: each class has one value")


def _follows(values: Floats, known: Bools, group: Groups) -> Verdict:
    """Return whether a column is the target of a regression, or rises and falls with it."""
    if group.targets is None or group.key != "label":
        return Verdict()
    values, targets = values[known], group.targets[known]
    if (values.astype(np.float32) == targets.astype(np.float32)).all():
        return Verdict("repeats the label")
    steps = np.diff(values[np.argsort(targets[:5000], kind="stable")])
    if len(values) > 5000 and ((steps >= 0).all() or (steps <= 0).all()):
        steps = np.diff(values[np.argsort(targets, kind="stable")])
    if (steps >= 0).all() or (steps <= 0).all():
        return Verdict(note="rises or falls with the label in every row, as a copy of it")
    return Verdict()


def _decides(values: Floats, known: Bools, group: Groups) -> int:
    """Return the number of values of a column of which each has one label; 0 if one has two."""
    found, codes = values[known], group.codes[known]
    for part in (slice(1000), slice(None)):
        distinct, places = np.unique(found[part], return_inverse=True)
        if 10 * len(distinct) > len(found[part]):
            return 0
        label = np.zeros(len(distinct), np.int64)
        label[places] = codes[part]
        if (label[places] != codes[part]).any():
            return 0
    return len(distinct)


def _counts(name: str, values: Floats, known: Bools, groups: Sequence[Groups]) -> str:
    """Return why a column of whole numbers counts rows or identifies them; empty if not."""
    found = values[known]
    n, low, high = len(found), float(found.min()), float(found.max())
    step = float(found[1] - found[0])
    if step and (found == found[0] + step * np.arange(n)).all():
        return f"counts the rows, from {found[0]:.12g} by {step:.12g}"
    if low in (0.0, 1.0) and _begins_again(name, values, known, groups):
        return "counts rows, and begins again"
    is_named = _IDENTIFIER.fullmatch(name) or _CAMEL.fullmatch(name) or _INDEX.fullmatch(name)
    pairs = _pairs(n, high - low)
    if not (pairs > SURPRISE or is_named or max(abs(low), abs(high)) > EXACT):
        return ""
    repeated = 0
    for part in (found[:1000], found):
        repeated = len(part) - len(np.unique(part))
        if repeated > 2 * MAX_REPEATED * len(part):
            return ""
    if high - low == n - 1 and not repeated:
        return f"numbers the rows, {low:.12g} .. {high:.12g} in another order"
    is_rare = pairs - DEVIATIONS * pairs**0.5 > repeated if repeated else pairs > SURPRISE
    if repeated > MAX_REPEATED * n or not (is_rare or (is_named and not repeated)):
        return "" if repeated or max(abs(low), abs(high)) <= EXACT else _IDENTIFIES.format(n, n)
    return _IDENTIFIES.format(n - repeated, n)


def _pairs(n: int, span: float) -> float:
    """Return the equal pairs that n whole numbers of a range have by chance."""
    return n * (n - 1) / max(2 * span, 1.0)


def _begins_again(name: str, values: Floats, known: Bools, groups: Sequence[Groups]) -> bool:
    """Return whether a column counts the rows of each user or class, or of parts of the table."""
    if not known.all():
        return False
    first, n = values.min(), len(values)
    if _INDEX.fullmatch(name):
        return bool(((np.diff(values) == 1) | (values[1:] == first)).all())
    for group in groups:
        sizes = np.bincount(group.codes)
        if values.max() - first + 1 != sizes.max() or group.n < 2 or n - group.n < MATCHES:
            continue
        order = np.argsort(group.codes, kind="stable")
        place = np.arange(n) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        if (values[order] == first + place).all():
            return True
    return False


def _odd_values(found: Floats, is_whole: bool) -> str:
    """Return what is unusual about the values of a column; empty if nothing is."""
    for marker in (float(found.min()), float(found.max())):
        is_usual = _SENTINEL.fullmatch(f"{marker:.0f}") is not None
        if not is_usual and abs(marker) < FAR:
            continue
        others = found[found != marker]
        times = len(found) - len(others)
        size, distance = np.abs(others).max(), np.abs(others - marker).min()
        is_huge = times > 1 and abs(marker) > FAR * size > 0
        if is_huge or (is_usual and distance > np.ptp(others)):
            return (
                f"has {marker:.6g} in {times:,} rows, far from "
                f"{others.min():.6g} .. {others.max():.6g}; if it stands for a missing value, "
                "leave these fields empty"
            )
    low, high = float(found.min()), float(found.max())
    if is_whole and low >= FIRST_DAY and high <= LAST_DAY:
        month, day = found // 100 % 100, found % 100
        if month.max() <= 12 and day.max() <= 31 and month.min() > 0 and day.min() > 0:
            return f"looks like dates, {low:.0f} .. {high:.0f}, and is used as a number"
    rounded = np.abs(found.astype(np.float32) - found).max()
    if max(abs(low), abs(high)) >= LARGE and rounded > ROUNDED * (high - low):
        return f"is rounded by up to {rounded:.3g} in float32; subtract {low:.12g} from it"
    return ""


def _doubt(name: str, found: Floats, is_whole: bool) -> str:
    """Return why a column that is used is perhaps no feature; empty if nothing shows it."""
    for part in (found[:100], found):
        steps = np.diff(part)
        counts_up = is_whole and ((steps == 1) | (part[1:] == found[0])).all()
        is_even = not is_whole and np.allclose(steps, steps[0], rtol=1e-3, atol=0.0)
        if not (counts_up or is_even):
            break
    else:
        if counts_up and (steps == 1).mean() > 0.8:
            return "counts up and begins again, as the number of a row"
        if is_even:
            return "rises evenly over the rows, as their number"
    low, high = float(found.min()), float(found.max())
    if is_whole and max(abs(low), abs(high)) >= LONG and len(np.unique(found)) == len(found):
        return (
            f"has {len(found):,} different whole numbers, {low:.12g} .. {high:.12g}: it may "
            "identify the examples, and is not scaled"
        )
    is_named = _IDENTIFIER.fullmatch(name) or _CAMEL.fullmatch(name)
    if is_whole and is_named and len(np.unique(found)) > 2:
        return "has the name of an identifier and is used as a number; [data] categories has others"
    return ""
