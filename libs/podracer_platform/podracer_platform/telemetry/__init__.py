"""Logs, spans and metrics of a service; no torch.

logging       structured logs
spans         the operations of a service, their durations and their jobs; off unless spans are
              recorded
span_files    spans in files of this machine
instruments   counters, gauges and histograms with bounded labels
metrics       the table of all of them

podracer_platform.service.telemetry sends them where a process's settings say.
"""
