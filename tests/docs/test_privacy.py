"""docs/privacy.md names every field of every message that a device sends."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct

from fairbed.wire.enrolment import EnrolRequest, RenewRequest
from fairbed.wire.messages import FromDevice

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text(encoding="utf-8")
SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
FIELDS_CELL = re.compile(r"^\|((?: `\w+`,?)+) \|", re.MULTILINE)


def structs_in(hint: Any) -> set[type[Struct]]:
    """Return the structs that a type hint names, and those that their fields name."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        hints = get_type_hints(hint, include_extras=True)
        inner = (structs_in(hints[name]) for name in hint.__struct_fields__)
        return {hint}.union(*inner)
    return set().union(*(structs_in(part) for part in get_args(hint)))


SENT = {struct.__name__: struct for struct in structs_in(FromDevice | EnrolRequest | RenewRequest)}
LISTED = {
    name: Counter(
        field for cell in FIELDS_CELL.findall(text) for field in re.findall(r"`(\w+)`", cell)
    )
    for name, text in SECTION.findall(PAGE)
}


def test_the_page_has_a_section_for_each_message_of_a_device_and_each_of_its_parts() -> None:
    assert LISTED.keys() == SENT.keys()
    assert {"Hello", "Capabilities", "Phases", "PhaseEnergy"} <= SENT.keys()


@pytest.mark.parametrize("name", sorted(SENT))
def test_a_section_lists_every_field_once_and_no_other(name: str) -> None:
    assert LISTED.get(name) == Counter(SENT[name].__struct_fields__)
