"""Summaries of a run, read from its store."""
