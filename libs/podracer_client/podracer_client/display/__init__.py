"""What a user sees of jobs: a live table, log lines or JSON lines, and what these are made of."""
