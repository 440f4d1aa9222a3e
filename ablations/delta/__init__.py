"""The change of a model by fine-tuning: profiles, grids, figures. Merges nothing."""
