"""The reproduction of the RBCS-F paper: its numbers, its arithmetic, and the command in small."""
