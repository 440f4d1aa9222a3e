"""The numbers that the paper printed, once."""
