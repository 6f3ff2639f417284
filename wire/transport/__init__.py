"""Transports: the interface, and its implementation over MQTT."""
