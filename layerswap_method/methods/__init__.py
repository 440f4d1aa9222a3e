"""The merge methods: what a recipe of each says, and the merge that it makes of its models."""
