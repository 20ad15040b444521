"""Judge retained traces again: with a judge that is new, or new in its version, or what was shed in an outage."""
