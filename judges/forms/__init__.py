"""Forms of answers shared by families of judges; each form has its schema, its parser and its scoring."""
