"""Speed and memory, measured: each module is a benchmark of `fairbed bench`."""
