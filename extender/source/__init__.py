"""Sources of events: the API server, by list and watch, or a snapshot file."""
