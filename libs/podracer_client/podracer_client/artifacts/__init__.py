"""Files on their way to a server and back.

uploads     a job's code and data, to the object store
data_sets   named data sets: stored, listed, described, fetched
"""
