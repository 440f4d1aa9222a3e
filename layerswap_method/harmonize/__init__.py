"""One architecture for models of different ones, with each model's function kept."""
