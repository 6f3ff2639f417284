"""Shaped links of the process backend: one TCP proxy per device."""
