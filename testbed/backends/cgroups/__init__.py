"""Control groups of emulated devices, of versions 1 and 2."""
