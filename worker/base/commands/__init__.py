"""The command line: options that commands share, and the commands that belong to no other part."""
