"""Outgoing traffic of the coordinator: typed messages and blobs."""
