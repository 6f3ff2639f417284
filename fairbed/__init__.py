"""Fairbed: an edge-device federated-learning testbed with a terminal control room."""
