"""``stowage demo``: places pods on an example cluster, with and without Stowage."""
