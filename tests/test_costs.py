"""The counts of a round, a chunk, a message and a start, beside their table, tests/costs.json."""

import sys

import pytest
from msgspec import structs

from tools import measure_costs
from tools.measure_costs import Costs, fall, growth, read_table

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.alone,
    pytest.mark.skipif(
        sys.version_info[:2] != measure_costs.PYTHON, reason="the counts are of one Python"
    ),
]
WRITE = "; python tools/measure_costs.py --write --reason TEXT takes the new counts"


@pytest.fixture(scope="module")
def now() -> Costs:
    return measure_costs.measure_apart()


def test_no_count_is_above_its_table(now: Costs) -> None:
    problems = growth(now, read_table())
    assert not problems, "\n".join([*problems, "remove the calls, or say what they buy" + WRITE])


def test_a_table_follows_its_counts_down(now: Costs) -> None:
    problems = fall(now, read_table())
    assert not problems, "\n".join([*problems, "the table is too high" + WRITE])


def test_a_function_that_grew_is_named() -> None:
    table = read_table()
    name = "wire/chunks.py:encode_chunk"
    more = structs.replace(table, chunk={**table.chunk, name: table.chunk[name] + 1})
    assert growth(more, table) == ["a chunk:", f"    {2:5} -> {3:5}  {name}"]
    assert fall(table, more) == ["a chunk:", f"    {2:5} -> {3:5}  {name}"]
    kept = table.modules["agent"]
    larger = structs.replace(table, modules={**table.modules, "agent": {**kept, "torch": 900}})
    count = sum(kept.values())
    assert growth(larger, table) == [
        f"agent: {count} -> {count + 900} modules imported before the end of the first round",
        f"    {0:5} -> {900:5}  torch",
    ]
    many = structs.replace(table, round={**table.round, "wire/x.py:f": 1000})
    assert growth(many, table)[1] == f"    {0:5} -> {1000:5}  wire/x.py:f"
