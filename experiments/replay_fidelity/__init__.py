"""How well a replay predicts a live fleet, held against how well a live run predicts its repeat."""
