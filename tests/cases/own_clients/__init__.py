"""Clients of whole runs."""
