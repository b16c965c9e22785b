"""Scores at many sizes: `evaluate` fills a `GridResult`."""
