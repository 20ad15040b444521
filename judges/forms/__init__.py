"""The forms of answer that families of judges share; each form knows its schema, its reader and its scoring."""
