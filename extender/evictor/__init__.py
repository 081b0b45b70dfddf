"""The evictor: makes room for pending pods through the eviction API. Off by default."""
