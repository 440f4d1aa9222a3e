"""What the paper printed, once."""
