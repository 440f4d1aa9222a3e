"""Intervals, paired tests, corpus metrics, and numbers as text."""
