"""Where the time of a job went, from the files of spans that its processes have written."""
