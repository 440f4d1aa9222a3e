"""Running a study: records, locks, executors and the loop over cells. Knows no engine by name.

`ablations.runner.records.load_run` reads what a run has written.
"""
