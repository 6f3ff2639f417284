"""The script of a round, without I/O; its drivers are elsewhere. Pure."""
