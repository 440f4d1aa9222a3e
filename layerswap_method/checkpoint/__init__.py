"""Model files: headers, configurations, bytes, adapters, tokens. No mergekit, no transformers."""
