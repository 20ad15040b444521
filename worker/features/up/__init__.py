"""`tracejudge up`: everything on one machine by one command."""
