"""Headrace as an operator runs it, for a test: its own processes over real stores."""
