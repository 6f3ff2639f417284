"""Agents in containers: a file system and process numbers of their own."""
