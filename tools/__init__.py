"""Programs that only maintainers run: they write tables and pages from the code."""
