"""A replay of requests: from traces of the public, or from a snapshot of a cluster."""
