"""Fleets and experiments: emulates, replays, records, breaks and benchmarks."""
