"""What a placement costs: the room that it takes from the requests to come."""
