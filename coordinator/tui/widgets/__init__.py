"""Widgets of the control room."""
