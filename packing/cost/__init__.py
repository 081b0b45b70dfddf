"""What a placement costs: how much less the fleet can take of the requests that are expected."""
