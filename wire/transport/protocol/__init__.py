"""MQTT 3.1.1 without input or output. Pure."""
