"""The cost of a placement: how much less of the expected demand the fleet can then accept."""
