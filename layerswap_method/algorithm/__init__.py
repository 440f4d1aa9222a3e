"""The method as mathematics: layer plans, coefficients, exact averages. No recipe, no file."""
