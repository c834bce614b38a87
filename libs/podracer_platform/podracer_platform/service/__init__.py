"""The start and end of every service process, its telemetry and its build; no torch.

process       settings, logs, and everything from `python -m` until the service serves
telemetry     spans and metrics, including those of the process itself, go where the settings say;
              otlp: to a collector or to Prometheus
build         the build of this process, and the builds it is compatible with
lifetime      a process ends with its parent, or on a signal
warm_start    services forked from a server that has torch imported: warm_start_server
"""
