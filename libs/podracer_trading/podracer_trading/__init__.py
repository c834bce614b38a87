"""Trading."""
