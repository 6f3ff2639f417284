"""Device profiles: what a device can do, with the source of every number."""
