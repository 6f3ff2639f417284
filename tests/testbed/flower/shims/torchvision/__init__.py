"""Stands in for torchvision, whose builds fit few builds of torch."""
