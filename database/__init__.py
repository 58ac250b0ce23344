"""What the rooms share of their way to PostgreSQL."""
