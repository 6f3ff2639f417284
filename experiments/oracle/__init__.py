"""What was true of a run, told afterwards: who knows it predicts as well as anybody can."""
