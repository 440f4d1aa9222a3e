"""Running a study: records, claims and the workers that ask models. Knows no engine by name.

`ablations.runner.records.load_run` reads what a run has written.
"""
