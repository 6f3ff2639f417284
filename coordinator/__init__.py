"""The coordinator: selects devices, merges their updates, and records and shows the run."""
