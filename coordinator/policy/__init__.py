"""Configuration, selectors, estimators and aggregators made from it, and their decisions. Pure."""
