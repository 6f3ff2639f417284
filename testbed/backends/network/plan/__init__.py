"""Names, addresses and `tc`/`ip` command lines of a shaped network. Pure."""
