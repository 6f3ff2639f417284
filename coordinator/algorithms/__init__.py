"""Pure algorithms, one paper per module: arrays in, arrays out."""
