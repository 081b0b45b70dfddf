"""Packing: which GPU request fits where, and what it costs. Pure: no Kubernetes, no HTTP, no clock."""
