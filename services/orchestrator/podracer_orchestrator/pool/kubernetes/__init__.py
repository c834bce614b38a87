"""Pods as Jobs of a Kubernetes cluster.

access      where the API server is, and who we are there
api         the few calls that the pool makes
reflector   list and watch: a copy of what is there, kept up to date by a thread
template    the pod template that the operator gives
job         what is sent: a Job made of the template and of the pod that is wanted
status      what Jobs and pods of the cluster say of themselves
troubles    what keeps a pod from working, in plain words
pool        the backend: makes, adopts and deletes Jobs until what is there is what is wanted
"""
