"""Flower apps as they are: the ServerApp drives the rounds, devices run the ClientApp."""
