"""The state of the cluster as Stowage knows it: nodes, pods and what they hold, and what is assumed."""
