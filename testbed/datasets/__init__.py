"""Data sets by name, as arrays."""
