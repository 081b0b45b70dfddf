"""All nodes as arrays, what is allocated on them, and on which nodes a request fits."""
