"""The merge method `delta_revert`: parts of an expert go back to its base."""
