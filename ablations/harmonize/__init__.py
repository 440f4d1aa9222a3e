"""One architecture for models of different ones, in which each computes the same as before."""
