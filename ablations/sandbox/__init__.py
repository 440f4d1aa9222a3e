"""Generated programs, held by bwrap, and what came of them."""
