"""The experiment file and what it describes: fleet, data sets, shards."""
