"""What is given to others: the model card of a merge."""
