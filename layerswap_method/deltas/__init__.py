"""Fine-tuning deltas: an expert minus its base, streamed from their files."""
