"""Network namespaces on Linux: one shaped link to this machine per device."""
