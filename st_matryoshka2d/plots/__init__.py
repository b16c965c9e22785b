"""Figures; the only folder that imports matplotlib."""
