"""The light agent that runs on a device: joins, trains, uploads, measures itself."""
