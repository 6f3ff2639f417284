"""The MQTT 3.1.1 protocol without I/O. Pure."""
