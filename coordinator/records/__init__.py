"""Builders of the rows that the store keeps. Pure."""
