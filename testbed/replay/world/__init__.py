"""Replayed devices: reported values, and true durations of exchanges. Pure."""
