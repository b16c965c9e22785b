"""Scores of every size: tables, comparisons with significance, and which size to ship. Needs no mteb."""
