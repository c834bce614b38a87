"""The worker: collects transitions for learners. It knows no job and holds no credentials."""
