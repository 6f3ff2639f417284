"""Network namespaces: a shaped link to this machine for each device, on Linux."""
