"""Engines that compute losses and gradients on a device."""
