"""``stowage replay``: places the pods of a trace or a snapshot under each policy in turn."""
