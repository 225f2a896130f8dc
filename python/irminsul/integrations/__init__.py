"""One folder per host engine; they know the core, and never each other."""
