"""``stowage plan``: what fewer, more or other nodes would change, carried out on the engine."""
