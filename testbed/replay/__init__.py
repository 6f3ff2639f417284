"""The same decisions on a virtual clock, without processes."""
