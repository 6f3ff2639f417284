"""The training loop: select, dispatch, collect, merge, evaluate, record."""
