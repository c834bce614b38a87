"""Files that a job brings along, code and data sets, on their way from the user's folder to a pod; no torch.

limits       how large they may be, and which paths a code archive may have
pack         a user's code in a folder -> an archive, the same bytes for the same content
unpack       an untrusted archive -> a folder
cache        files by hash in a bounded folder of this machine, for several processes
placement    settings of services with a cache; an environment whose files are in it -> one that can be started
transfer     files from one service to another
"""
