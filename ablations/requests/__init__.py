"""What an evaluation is of: the tasks that a request means, read once, and a hash of each."""
