"""One screen a task."""
