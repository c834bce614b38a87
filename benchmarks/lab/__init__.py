"""What the benchmarks share.

arguments    the command line: `--quick` and the other common arguments
report       tables, targets, and the closing JSON line
runs         ended runs in files of JSON lines, so that an interrupted benchmark continues
statistics   medians, paired ratios, interquartile means, bootstrap intervals
plots        figures
processes    measured commands, `podracer run`, and measurements in processes of their own
peers        the virtual environment of peers, and the scripts that run in it
events       what these scripts tell
agents       agents of ours that train in this process

`arguments`, `report`, `runs` and `events` need the standard library alone.
"""
