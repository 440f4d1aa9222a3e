"""The pocket testbed: a toy world, models of it and tasks; `build.build_pocket` makes it."""
