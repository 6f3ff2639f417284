"""Measures a device and writes its profile. See docs/record.md.

samples --> findings --> profile        pure: rates, processor, heat, presence, findings, compose
   ^
   shells: a run's store, or this machine
"""
