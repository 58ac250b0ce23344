"""The agent that runs on every node: `python -m agents`."""

VERSION = "0.1.0"
