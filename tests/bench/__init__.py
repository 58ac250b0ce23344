"""Measurements of what people wait for. They gate no test; see `make bench-path`."""
