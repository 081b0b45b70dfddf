"""The running service: HTTP routes, start and stop, leader election, metrics."""
