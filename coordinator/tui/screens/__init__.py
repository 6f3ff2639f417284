"""Screens of the control room, one per task."""
