"""The page about scale has the bounds of the code."""

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
ROW = re.compile(r"^\| [^|]+ \| ([\d,]+) \| `([\w.]+)\.(\w+)` \|", re.MULTILINE)


def test_each_queue_has_the_bound_of_the_code() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert len(rows) == 16
    for bound, module, name in rows:
        value = getattr(importlib.import_module(f"fairbed.{module}"), name)
        most = value[-1] if isinstance(value, tuple) else value  # (a second, at once)
        assert most == int(bound.replace(",", "")), f"{module}.{name}"
