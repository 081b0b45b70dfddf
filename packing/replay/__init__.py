"""Requests placed one after the other, by any policy, without a cluster."""
