"""Studies: from a YAML file to cells with keys."""
