"""The content of a trace: encoding, redaction and truncation."""
