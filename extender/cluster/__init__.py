"""The state of the cluster as Stowage knows it: nodes, pods and what they have of nodes, and assumed pods."""
