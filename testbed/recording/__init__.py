"""Measures a device and writes its profile. See docs/record.md.

samples --> findings --> profile        analysis/ (pure)
   ^
   sources: the store of a run, or this machine
"""
