"""All that knows mergekit: the methods, the planner, the checks before a merge, registration."""
