"""All nodes as arrays, what is allocated on them, and which nodes fit a request."""
