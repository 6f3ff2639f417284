"""Rounds on a virtual clock, driven by an event heap over the coordinator's own tables. Pure."""
