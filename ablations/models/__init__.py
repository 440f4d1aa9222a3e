"""Finding models: folders, hub ids, adapters on a base."""
