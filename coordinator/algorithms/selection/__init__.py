"""Who trains in this round."""
