"""Clients: training code of the user, each in a process of its own."""
