"""What is made of a model: cuts in layers, dims and vocabulary, checked to be exact, and asymmetric models of them."""
