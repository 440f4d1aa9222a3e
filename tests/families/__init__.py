"""`layer_swap` on every family mergekit can load, against an oracle of its own."""
