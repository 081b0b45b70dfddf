"""The inventory of a node: one ``NodeSpec`` from labels, annotations and allocatable resources."""
