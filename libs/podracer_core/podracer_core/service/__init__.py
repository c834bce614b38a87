"""How every service process starts, what it says of itself, and when it ends; no torch.

process       settings, logs and the way from `python -m` to serving
telemetry     spans and metrics, those of the process itself among them, go where the settings say; otlp: to a collector
              or to Prometheus
build         which build this is, and with which others it may talk
lifetime      a process ends with its parent, or on a signal
warm_start    services forked from a server that has torch imported: warm_start_server
"""
