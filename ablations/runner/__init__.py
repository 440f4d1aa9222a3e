"""Running a study: records, claims and the workers that ask models."""
