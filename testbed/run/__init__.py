"""One live run: preflight checks, broker, fleet, coordinator, evaluation and shutdown."""
