"""Summaries of a run, computed from its store."""
