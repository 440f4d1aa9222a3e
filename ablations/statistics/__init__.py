"""Numbers only: intervals, paired tests, power, corpus metrics."""
