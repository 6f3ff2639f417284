"""A module whose import raises."""

LIMITS = {}
print("reading limits")
LIMIT = LIMITS["memory"]
