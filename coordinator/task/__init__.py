"""Models by name: shipped artifacts, their initial values, and the exporter."""
