"""Scores at many sizes: `GridResult`."""
