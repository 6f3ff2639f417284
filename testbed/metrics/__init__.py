"""Numbers of a run for Prometheus and TensorBoard, read from its store by a process of its own."""
