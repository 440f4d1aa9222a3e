"""Layer swapping in the adapters' own space: adapters in, one adapter out, no merged weights."""
