"""Fans work out over the hosts of a Ray cluster; the only folder that imports ray."""
