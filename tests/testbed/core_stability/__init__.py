"""Core stability of finished runs."""
