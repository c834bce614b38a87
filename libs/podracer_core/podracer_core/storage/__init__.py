"""Objects by key, in a folder or in an S3 bucket; no torch.

object_store  the interface and `open_store(url)`
folder        file:///path
s3            s3://bucket/prefix
layout        which key belongs to what
manifest      which files an object of several files has, and their checksums
"""
