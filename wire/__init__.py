"""What crosses the network between a coordinator and a device, and nothing else."""
