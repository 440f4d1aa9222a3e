"""What a `layer_swap` recipe means: parameters, roles, placements, measured weights, report."""
