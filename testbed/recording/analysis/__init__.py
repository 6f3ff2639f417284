"""From measurements to the numbers of a profile. Pure."""
