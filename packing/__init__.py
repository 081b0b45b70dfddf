"""Packing: where a GPU request fits, and what it costs. Pure: no Kubernetes, no HTTP, no clock."""
