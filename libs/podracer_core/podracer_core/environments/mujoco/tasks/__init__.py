"""The tasks: what they observe, what they reward and how they end."""
