"""Tasks from the user's own data."""
