"""A small CNN with augmentation and Adam, as a Flower app."""
