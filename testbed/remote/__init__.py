"""The rows of a live run for viewers on other machines: the relay beside it, and their side."""
