"""Small inputs that were once accepted or answered wrongly, each with its right value."""
