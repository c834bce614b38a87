"""Pods as Jobs of a Kubernetes cluster: `pool` is the backend, `cluster` a copy of what is there, `template` and `job`
what is sent, `status`, `troubles` and `deaths` what the cluster says of it, `pacing` how far and how fast to go."""
