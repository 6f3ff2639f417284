"""One live run: checks before it, broker, fleet, coordinator, evaluation, and its end."""
