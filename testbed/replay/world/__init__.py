"""The replayed devices: what is known of them, and how long their exchanges take. Pure."""
