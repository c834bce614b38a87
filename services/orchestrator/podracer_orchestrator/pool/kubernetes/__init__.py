"""Pods as Jobs of a Kubernetes cluster: `pool` is the backend, `cluster` a copy of its objects,
`template` and `job` the objects to create, `status` and `troubles` their state, `memory` the
reported ends and the waiting times."""
