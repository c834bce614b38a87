"""A light client of the Kubernetes API.

access   where the API server is, and who we are there
api      the few calls that Podracer makes
"""
