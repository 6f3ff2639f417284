"""Filters of lists, as typed after `/`: `pi state:silent tau>3`. Pure."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    ":": operator.eq,
}
FACTORS = {"": 1.0, "%": 0.01, "k": 1e3, "M": 1e6, "G": 1e9}
"""Factors that may follow a number."""

_TERM = re.compile(r"(?P<name>[\w-]*)(?P<relation><=|>=|!=|[<>=:])(?P<value>.*)")
_NUMBER = re.compile(r"(?P<digits>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)(?P<factor>[%kMG]?)")


class FilterError(ValueError):
    """An expression that is no filter; the message is one line that explains why."""


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One thing that a filter can ask of a row."""

    name: str
    """Name to type; one word in small letters."""
    value: Callable[[T], str | float | None]
    """Text or number of a row; None where it is unknown, which no comparison accepts."""
    is_number: bool = False
    is_searched: bool = False
    """A word without a name is looked for in this text."""


@dataclass(frozen=True, slots=True)
class Filter(Generic[T]):
    """Terms that must all be true of a row; without terms it accepts every row."""

    text: str = ""
    """The expression, without spaces around it."""
    terms: tuple[Callable[[T], bool], ...] = ()

    def __call__(self, row: T) -> bool:
        """Return whether every term is true of a row."""
        return all(term(row) for term in self.terms)


def parse_filter(text: str, fields: Sequence[Field[T]]) -> Filter[T]:
    """Return the filter of an expression.

    Terms are separated by spaces, and all must be true. A term is a word to be found in the
    searched fields, or a name, a relation and a value: `state:silent` (the text contains it),
    `state=idle` (the text is it), `rate<0.2`, `down>=10M`. Commas separate alternatives
    (`state:silent,gone`); `!` before a term negates it. Letter case does not matter.

    Args:
        text: The expression; empty for no filter.
        fields: Fields of the rows.

    Raises:
        FilterError: A name is unknown, or a value is missing or not a number.
    """
    return Filter(" ".join(text.split()), tuple(_term(word, fields) for word in text.split()))


def _term(word: str, fields: Sequence[Field[T]]) -> Callable[[T], bool]:
    if word.startswith("!") and len(word) > 1:
        negated = _term(word[1:], fields)
        return lambda row: not negated(row)
    found = _TERM.fullmatch(word)
    if found is None:
        return _contains(word, [field for field in fields if field.is_searched])
    name, relation, value = found.group("name", "relation", "value")
    field = next((field for field in fields if field.name == name.lower()), None)
    if field is None:
        names = ", ".join(field.name for field in fields)
        raise FilterError(f"{word}: no field {name!r}; fields: {names}")
    if not value:
        raise FilterError(f"{word}: a value must follow")
    if field.is_number:
        return _compares(word, field, relation, value)
    if relation in ("<", ">", "<=", ">="):
        raise FilterError(f"{word}: {name} is a text; write {name}:{value}")
    if relation == ":":
        return _contains(value, [field])
    accepted = value.lower().split(",")
    return lambda row: (str(field.value(row) or "").lower() in accepted) == (relation == "=")


def _contains(value: str, fields: Sequence[Field[T]]) -> Callable[[T], bool]:
    wanted = [part for part in value.lower().split(",") if part]

    def is_found(row: T) -> bool:
        texts = [str(field.value(row) or "").lower() for field in fields]
        return any(part in text for part in wanted for text in texts)

    return is_found


def _compares(word: str, field: Field[T], relation: str, value: str) -> Callable[[T], bool]:
    found = _NUMBER.fullmatch(value)
    if found is None:
        raise FilterError(f"{word}: must be a number as in {field.name}>3 or 10M, got {value!r}")
    limit = float(found["digits"]) * FACTORS[found["factor"]]
    compare = COMPARISONS[relation]

    def is_true(row: T) -> bool:
        known = field.value(row)
        return known is not None and compare(float(known), limit)

    return is_true
