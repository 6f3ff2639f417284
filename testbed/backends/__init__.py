"""Ways to run an emulated device on this machine."""
