"""The limits of a judge model's endpoint: how much is asked at once, when it is left alone, what is tried again.

These decide, without waiting; times are passed in:

concurrency    how many calls may be under way, found by trying; ``rounds`` is what it counts with
circuit        when an endpoint that fails is left alone, and how it is found that it is back
pacing         pauses and quotas, as the endpoint says them
closing        what circuit and pacing mean for who would like to call
retries        what is tried again, when, and how often altogether

``gate`` lets calls through by what they say, ``witness`` is told of it, and ``model`` puts gate, retries and metrics
around a chat model.
"""
