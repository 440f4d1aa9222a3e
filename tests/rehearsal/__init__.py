"""The path of real experts, walked with tiny ones."""
