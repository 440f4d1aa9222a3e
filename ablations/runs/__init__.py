"""What a run leaves in its folder: its plan, records, scores and observations."""
