"""Figures, the home of matplotlib, and text tables."""
