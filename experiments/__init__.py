"""Studies that are not part of the product; they run from a clone of the repository."""
