"""How bytes travel: one interface, two ways (MQTT, and memory for tests)."""
