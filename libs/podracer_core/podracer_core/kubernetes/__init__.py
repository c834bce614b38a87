"""A light client of the Kubernetes API.

access   where the API server is, and who we are there
api      the few calls that Podracer makes
active_label  by which a Service finds the active one of two Pods
"""
