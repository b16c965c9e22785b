"""Whether two grids differ by more than chance."""
