"""From what was measured of a device to its profile. See docs/record.md.

samples --> findings --> profile        pure: rates, processor, heat, presence, findings, compose
   ^
   shells: a run's store, or this machine
"""
