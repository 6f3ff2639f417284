"""Modules as their authors wrote them; `tests/cases/test_models.py` copies and imports them."""
