"""The evictor: makes room for waiting pods through the eviction API. Off by default."""
