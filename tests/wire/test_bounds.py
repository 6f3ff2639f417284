"""Every field of every message has bounds: no peer can send a value of any size."""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from fairbed.wire.artifact import Artifact
from fairbed.wire.messages import AnyMessage
from fairbed.wire.shard import Shard

BLOBS = {"train", "evaluate", "x", "y"}
"""Bytes that are as long as the verified blob around them."""


def unbounded(kind: inspect.Type, path: str, seen: frozenset[type] = frozenset()) -> Iterator[str]:
    """Yield the paths below `kind` whose values have no lower or no upper bound."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            if kind.ge is kind.gt is None or kind.le is kind.lt is None:
                yield path
        case inspect.StrType():
            if kind.max_length is None and kind.pattern is None:
                yield path
        case inspect.BytesType():
            if kind.max_length is None and path.rpartition(".")[2] not in BLOBS:
                yield path
        case inspect.ListType() | inspect.VarTupleType():
            if kind.max_length is None:
                yield path
            yield from unbounded(kind.item_type, f"{path}[]", seen)
        case inspect.DictType():
            if kind.max_length is None:
                yield path
            for item in (kind.key_type, kind.value_type):
                yield from unbounded(item, f"{path}[]", seen)
        case inspect.TupleType():
            for item in kind.item_types:
                yield from unbounded(item, f"{path}[]", seen)
        case inspect.UnionType():
            for one in kind.types:
                yield from unbounded(one, path, seen)
        case inspect.Metadata():
            yield from unbounded(kind.type, path, seen)
        case inspect.StructType() if kind.cls not in seen:
            for field in kind.fields:
                yield from unbounded(field.type, f"{path}.{field.name}", seen | {kind.cls})
        case inspect.StructType() | inspect.LiteralType() | inspect.BoolType() | inspect.NoneType():
            pass
        case _:
            yield f"{path}: {type(kind).__name__}"


@pytest.mark.parametrize(
    "kind", [*get_args(AnyMessage), Artifact, Shard], ids=lambda kind: kind.__name__
)
def test_every_field_is_bounded(kind: Any) -> None:
    assert list(unbounded(inspect.type_info(kind), kind.__name__)) == []


def test_a_field_without_a_bound_is_found() -> None:
    class Open(msgspec.Struct):
        a: int
        b: list[float]

    found = list(unbounded(inspect.type_info(Open), "Open"))
    assert found == ["Open.a", "Open.b", "Open.b[]"]
