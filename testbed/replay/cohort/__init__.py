"""Local training of a whole cohort, with the results of its devices."""
