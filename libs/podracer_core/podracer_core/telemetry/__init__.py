"""What a service tells its operator; no torch.

logging       structured logs
spans         what was done, for how long, and for which job; nothing unless spans are recorded
span_files    spans in files of this machine
instruments   counters, gauges and histograms with bounded labels
metrics       the table of all of them

Where they go as a process's settings say: podracer_core.service.telemetry.
"""
