"""One run: broker, fleet, coordinator, and their end."""
