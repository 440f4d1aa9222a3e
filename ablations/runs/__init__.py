"""The folder of a run: its plan, records, scores and observations."""
