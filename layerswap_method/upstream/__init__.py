"""What goes to mergekit itself: one assembled file with its guide, example and tests."""
