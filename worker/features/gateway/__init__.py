"""The gateway: OTLP and plain JSON over HTTP, gathered, joined and written into the stream of traces."""
