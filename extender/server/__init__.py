"""The running service: HTTP routes, start and stop, the lead among replicas, metrics."""
