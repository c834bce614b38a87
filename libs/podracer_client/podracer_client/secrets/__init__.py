"""The secrets of a deployment.

deployment   tokens, certificates and keys in a folder; signed tokens
cluster      the same as Secrets of a Kubernetes cluster
"""
