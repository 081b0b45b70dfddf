"""Replays without a cluster: requests placed one after the other under one policy."""
