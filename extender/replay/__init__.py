"""``stowage replay``: the pods of a trace or of a snapshot, placed under one policy after another."""
