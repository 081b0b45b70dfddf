"""Answers for people: why a pod is here, why it waits, what a node has, and what was decided."""
