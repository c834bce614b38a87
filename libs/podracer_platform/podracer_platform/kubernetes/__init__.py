"""A light client of the Kubernetes API.

access   the API server's address and this process's credentials
api      the few calls that Podracer makes
active_label  the label by which a Service finds the active one of two Pods
"""
