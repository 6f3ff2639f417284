"""What the commands do, as functions for scripts and notebooks; `import fairbed` exports them."""

from pathlib import Path

RUNS = Path("runs")
"""Folder of runs without another one."""
