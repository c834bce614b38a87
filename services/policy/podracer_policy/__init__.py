"""The policy server: trained policies act for whoever asks."""
