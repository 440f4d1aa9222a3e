"""Running a study: records, claims and the workers that evaluate models."""
