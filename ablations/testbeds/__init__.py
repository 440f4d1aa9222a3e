"""Testbeds for a laptop: tiny experts (`pocket`) and those of a real small model (`smol`)."""
