"""The training pool: who makes the pods.

backend     what every backend does
static      pods come by themselves (docker compose)
local       pods are processes of this machine
kubernetes  pods are Jobs of a cluster
pod         one local pod: its processes, watched and started again
process     one process with its log
machine     what the machine has, and what is in use
"""
