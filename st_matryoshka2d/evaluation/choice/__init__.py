"""What a size costs, and which one to ship."""
