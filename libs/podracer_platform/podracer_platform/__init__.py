"""The platform that Podracer's services and its client stand on.

yaml_text, settings     a job file's YAML, a service's environment -> checked values
jobs                    a job: its file, its specification
messages                conversions between the sections, cohorts and results of podracer_core and
                        protobuf messages
rpc                     everything between a process and gRPC
carriers                how tensors cross between processes
storage, attachments    objects in S3; the code and data of a job
database, kubernetes    the state of a control service; the cluster it runs in
telemetry               logs, spans and metrics
service                 the start and end of every process
"""
