"""State of the agent: lifecycle and link estimate. Pure."""
