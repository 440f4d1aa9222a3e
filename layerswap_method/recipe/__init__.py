"""Common parts of all recipes: strict YAML, parameters in words, keys, references."""
