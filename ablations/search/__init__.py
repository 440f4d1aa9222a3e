"""`layerswap search`: the best setting of a study, reported on items that did not choose it."""
