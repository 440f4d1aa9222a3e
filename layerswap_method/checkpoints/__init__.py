"""Facts of model files: headers, configurations, bytes, adapters. No mergekit, no transformers."""
