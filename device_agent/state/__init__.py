"""State of the agent: its lifecycle and its estimate of the link. Pure."""
