"""Training of experts: one configuration file, one command, every regime."""
