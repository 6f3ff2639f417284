"""The reference of the experiment file is complete, and the committed one is up to date."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fairbed.testbed.experiment.file import load_experiment, parse_experiment, read_document
from fairbed.testbed.experiment.reference import (
    json_schema,
    reference_page,
    schema_text,
    tables,
)
from fairbed.testbed.experiment.resolved import resolved_lines

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


def test_every_table_and_key_has_a_meaning() -> None:
    found = list(tables())
    assert len(found) > 20
    assert not [table.heading for table in found if not table.meaning]
    assert not [
        (table.heading, key.name) for table in found for key in table.keys if not key.meaning
    ]


def test_the_committed_pages_are_the_generated_ones() -> None:
    command = [sys.executable, "tools/write_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_column_of_the_store_has_a_meaning() -> None:
    lines = (ROOT / "docs/store.md").read_text().splitlines()
    assert sum(line.startswith("| `") for line in lines) > 150
    assert not [line for line in lines if line.endswith("|  |")]


def test_the_schema_has_limits_defaults_and_no_null() -> None:
    definitions = json_schema()["$defs"]
    beta = definitions["SelectionConfig"]["properties"]["beta"]
    assert (beta["minimum"], beta["maximum"], beta["default"]) == (0.0, 1.0, 0.15)
    assert "selection rate" in beta["description"]
    assert "null" not in schema_text()
    assert definitions["Experiment"]["required"] == ["name"]
    assert definitions["FleetConfig"]["additionalProperties"] is False


def test_a_row_of_the_page_has_values_unit_and_default() -> None:
    assert (
        "| `deadline_s` | number > 0 and ≤ 1e+07, s | `60.0` | "
        "Time from the dispatch, without the time in the upload queue. |"
    ) in reference_page()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_names_the_schema(path: Path) -> None:
    assert path.read_text().startswith("#:schema ../docs/experiment.schema.json\n")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_resolved_lines_are_the_same_experiment(path: Path) -> None:
    document = read_document(path)
    is_physical = "physical" in document["fleet"][0]
    settings = ["selection.V=9", f"fleet.0.{'profile' if is_physical else 'name'}=first"]
    lines = list(resolved_lines(document, "e.toml", settings, 5))
    again = parse_experiment(msgspec.toml.decode("\n".join(lines)), "resolved")
    assert again == load_experiment(path, settings, 5)


def test_each_resolved_value_has_its_origin() -> None:
    document = {"name": "a", "fleet": [{"count": 4}], "model": {"name": "mlp"}}
    text = "\n".join(resolved_lines(document, "e.toml", ["fleet.0.name=b", "selection.V=9"], 5))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    fleet = lines.index("[[fleet]]")
    for line in (
        'name = "a" # e.toml',
        "seed = 5 # --seed",
        "rounds = 30 # default",
        "V = 9.0 # --set",
        "# max_steps: not set # default",
        "training = true # derived",
    ):
        assert line in lines
    assert {'name = "b" # --set', "count = 4 # e.toml", "noise = 0.1 # default"} <= set(
        lines[fleet:]
    )
