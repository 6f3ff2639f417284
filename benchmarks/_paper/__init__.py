"""The experiments of the RBCS-F paper, replayed: rounds, table, training and figures."""
