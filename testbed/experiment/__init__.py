"""The experiment file, and the fleet, data sets and shards that it describes."""
