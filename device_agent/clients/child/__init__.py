"""The side of a client's process: for any interpreter, standard library and numpy alone."""
