"""Calls to the endpoints of judge models: limited, retried and measured.

The pure parts decide without waiting, with times passed in: ``concurrency`` (calls in flight), ``availability``
(circuit breaker) and ``rate_limits`` (what the endpoint announces). ``limiter`` admits calls accordingly; ``client``
wraps a chat model with limiter, retries and metrics.
"""
