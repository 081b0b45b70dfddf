"""What a node has: one ``NodeSpec`` from labels, annotations and allocatable resources."""
