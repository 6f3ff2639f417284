"""How updates become the next model."""
