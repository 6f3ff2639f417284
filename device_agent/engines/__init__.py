"""Training engines: losses and gradients on a device."""
