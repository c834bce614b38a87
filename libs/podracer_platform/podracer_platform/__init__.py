"""The platform that Podracer's services and its client stand on.

yaml_text, settings     a job file's YAML, a service's environment -> checked values
jobs                    a job: its file, its specification
messages                conversions between the sections of podracer_core and protobuf messages
training_messages       the same of cohorts and evaluations; the only module besides carriers that
                        needs torch
rpc                     everything between a process and gRPC
carriers, shared_folder how tensors cross between processes; where those of one machine meet
storage, attachments    objects in S3; the code and data of a job
database, kubernetes    the state of a control service; the cluster it runs in
telemetry               logs, spans and metrics
service                 the start and end of every process
"""
