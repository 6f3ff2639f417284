"""The comparison of solvers prints a row for each family and size."""

import pytest

from experiments.quadratic_solvers import FAMILIES, main


def test_the_product_solves_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--count", "6"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "ours 0 (" in line] == lines[1 : 1 + len(FAMILIES)]
    assert lines[-1].startswith("  K = 200  ours ")
