"""A policy given to others.

card  what its page says
push  to Hugging Face, or into MLflow's registry of models
"""
