"""The configuration, the algorithms that it names, and their decisions. Pure."""
