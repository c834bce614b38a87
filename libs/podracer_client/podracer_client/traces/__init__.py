"""Where the time of a job went, from the files of spans that its processes have written.

reading   the spans of a job's trace
flame     which work took how long, all of the same kind together
text      that as a tree for the terminal
page      that, and when what was done, as one HTML file
"""
