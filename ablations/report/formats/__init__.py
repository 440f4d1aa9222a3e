"""One report in each format."""

FORMATS = ("md", "csv", "latex", "html")
"""What `layerswap report` can write."""
