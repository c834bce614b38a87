"""Files on their way to a server and back: a job's code and data, checkpoints, data sets by name."""
