"""The files of a job, code and data sets, and their transfer from the user's folder to a pod; no
torch.

limits       their maximum sizes, and the allowed paths in a code archive
pack         a user's code in a folder -> an archive, the same bytes for the same content
unpack       an untrusted archive -> a folder
cache        files by hash in a bounded folder of this machine, for several processes
placement    settings of services with a cache; the environment of a job -> one that can be started
             from the cache
transfer     files from one service to another
"""
