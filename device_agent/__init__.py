"""The agent of a device: joins a coordinator, trains, uploads updates and measures the device."""
