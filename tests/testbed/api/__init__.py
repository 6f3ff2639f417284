"""Tests of the functions behind the commands."""
