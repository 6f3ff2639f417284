"""Tests of the processes of Flower apps."""
