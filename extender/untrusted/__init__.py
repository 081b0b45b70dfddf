"""Limits on untrusted input, and the readers and caches that enforce them."""
