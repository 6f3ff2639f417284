"""Aggregation: weights of the updates, pseudo-gradient and server step make the next model."""
