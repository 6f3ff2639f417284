"""The benchmark of networks runs on one of them, and writes the page."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from benchmarks import models


def test_a_network_has_a_row_in_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "models.md"
    page.write_text(f"# Title\n\n{models.BEGIN}\nold\n{models.END}\nafter\n", encoding="utf-8")
    few = ["--networks", "DS-CNN", "--small", "--batch", "2", "--seconds", "0"]
    assert models.main([*few, "--write", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert capsys.readouterr().out.strip() in text
    assert text.startswith("# Title")
    assert text.endswith(f"{models.END}\nafter\n")
    rows = [line.split(" | ") for line in text.splitlines() if "| onnx |" in line]
    assert [row[0].strip("| ") for row in rows] == ["DS-CNN, 49 x 10", "DS-CNN"]
    assert rows[0][2] == "24,332"
    assert float(rows[0][6]) < 1e-6
    assert 0.0 < float(rows[0][10]) < float(rows[0][9].split()[0]), "products, a part of the ratio"
    assert float(rows[0][11].strip("| ")) > 0.0, "memory of a network in its real size"
