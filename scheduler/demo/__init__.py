"""A past for an installation that has none: `manage.py demo_data`."""
