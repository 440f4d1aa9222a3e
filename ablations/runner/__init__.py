"""Runs: workers, the engines that they drive, and what a run folder is given."""
