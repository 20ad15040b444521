"""The threads of one worker, and what it does once a minute."""
