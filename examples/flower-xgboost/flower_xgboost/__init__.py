"""Bagged trees of xgboost, as a Flower app."""
