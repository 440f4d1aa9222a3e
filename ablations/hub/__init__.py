"""What is given to others: model cards, uploads, bundles of a run."""
