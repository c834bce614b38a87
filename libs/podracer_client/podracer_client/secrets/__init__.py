"""The tokens, certificates and keys of a deployment, in a folder or as Secrets of a cluster."""
