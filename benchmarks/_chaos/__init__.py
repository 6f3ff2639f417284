"""Faults at random against a live fleet; the benchmark is `benchmarks.chaos`."""
