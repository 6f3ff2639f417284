"""Every fault of tools/faults.toml can be injected in this tree."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tools.inject_faults import Fault, FaultError, copy_tracked, first_catch, read_faults

ROOT = Path(__file__).parent.parent
FAULTS = read_faults(ROOT)

HALF = Fault(
    id="half",
    behaviour="One half is a quarter.",
    file="half.py",
    old="0.5",
    new="0.25",
    tests=("test_half.py",),
)


@cache
def sound(file: str) -> tuple[str, str]:
    """Return the text of a file, and the tree of its code."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return text, ast.dump(ast.parse(text))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_can_be_injected_and_compiles(fault: Fault) -> None:
    text, tree = sound(fault.file)
    assert ast.dump(ast.parse(fault.injected(text))) != tree
    assert not [test for test in fault.tests if not (ROOT / test).exists()]


def test_each_fault_has_an_id_of_its_own() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS) >= 30


@pytest.mark.parametrize("text", ["HALF = 1 / 2\n", "HALF, OTHER = 0.5, 0.5\n"])
def test_a_text_that_is_not_there_once_is_refused(text: str) -> None:
    with pytest.raises(FaultError, match=r"^half: half\.py must hold the old text once, got [02]$"):
        HALF.injected(text)


def test_the_copy_keeps_the_links_to_the_folders(tmp_path: Path) -> None:
    copy_tracked(ROOT, tmp_path)
    assert (tmp_path / "fairbed" / "wire").is_symlink()
    assert (tmp_path / "fairbed" / "wire" / "chunks.py").samefile(tmp_path / "wire" / "chunks.py")


@pytest.mark.full
@pytest.mark.parametrize(
    ("expected", "caught"), [("0.5", "test_half.py::test_half"), ("HALF", "")], ids=["yes", "no"]
)
def test_only_a_test_that_looks_catches_a_fault(expected: str, caught: str, tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("HALF = 0.5\n")
    lines = ("from half import HALF", "", "", "def test_half():", f"    assert {expected} == HALF")
    (tmp_path / "test_half.py").write_text("\n".join(lines))
    assert first_catch(HALF, tmp_path, 0, "fast") == caught
    assert (tmp_path / "half.py").read_text() == "HALF = 0.5\n"
