"""The machine under it all: whole files, locks, fingerprints, processes, progress."""
