"""Trained policies: found by name, evaluated together, served, and asked for actions (`PolicyClient`)."""
