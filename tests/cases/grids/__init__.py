"""Inputs as their authors wrote them."""
