"""A merge written as a checkpoint: its weights, its donor's files, its card."""
