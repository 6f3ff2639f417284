"""Networks of a user that are fine-tuned."""
