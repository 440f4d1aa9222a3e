"""One report in each format."""
