"""What a model is: its routes and blocks, the layers of each depth, readouts, and what its config declares."""
