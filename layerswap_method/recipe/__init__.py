"""What every recipe shares: strict YAML, parameters in words, keys, references."""
