"""The coordinator process: router, operator commands, lease, event log."""
