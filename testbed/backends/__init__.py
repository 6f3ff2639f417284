"""Backends: run emulated devices as namespaces, containers or processes of this machine."""
