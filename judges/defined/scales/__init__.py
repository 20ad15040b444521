"""The scales on which a judge of a user's own may rate, one kind a file."""
