"""Agents in containers: each has its own file system and process ids."""
