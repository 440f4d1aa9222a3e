"""Where fine-tuning changed a model: profiles, grids, figures. Merges nothing."""
