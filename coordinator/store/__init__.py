"""The run store: one SQLite file is the single record of a run."""
