"""Limits on what others write, and the readers and caches that keep to them."""
