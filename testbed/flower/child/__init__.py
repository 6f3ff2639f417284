"""Code that runs in the interpreter of a Flower app, beside its ServerApp."""
