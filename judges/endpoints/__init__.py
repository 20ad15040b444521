"""Calls to the endpoints of judge models: limited, retried and measured; ``limiter`` combines the parts."""
