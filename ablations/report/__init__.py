"""Reports of runs: tables, figures and what may be concluded from them. Runs nothing."""
