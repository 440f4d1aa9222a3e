"""Layer swapping (arXiv 2410.01335) as a mergekit merge method. Imports nothing heavy."""

__version__ = "0.1.0"
