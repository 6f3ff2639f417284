"""Softmax regression in numpy, as a Flower app."""
