"""Where events come from: the API server, by list and watch, or a snapshot in a file."""
