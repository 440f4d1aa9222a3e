"""Figures: the home of matplotlib."""
