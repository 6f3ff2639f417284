"""State machines and tables of rounds, exchanges, loss queries and devices. Pure."""
