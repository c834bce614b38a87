"""The gRPC services of clients and pods: they decode, call the domain and encode.

job_service, artifact_service, pod_service   the services
job_changes, watching                        changing a job; snapshots and events for watchers
messages                                     jobs, pods, events and promotions as clients see them
"""
