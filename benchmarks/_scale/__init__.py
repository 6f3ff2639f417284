"""Parts of `fairbed bench scale`."""
