"""Local training of a whole cohort in this process: what its devices would have answered."""
