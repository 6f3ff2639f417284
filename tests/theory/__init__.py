"""Theorems behind the rules, checked by numbers; `python -m tests.theory` prints what was seen."""
