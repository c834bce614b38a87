"""Pods as Jobs of a Kubernetes cluster: `pool` is the backend, `cluster` a copy of what is there, `template` and `job`
what is sent, `status` and `troubles` what the cluster says of it, `memory` what was told and how fast to go."""
