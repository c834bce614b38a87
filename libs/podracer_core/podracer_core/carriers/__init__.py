"""How tensors cross between processes.

inline                                  in messages: always works
shared_memory, cuda_ipc                 by slots that both have mapped; slots, staging: their two ends
negotiation                             which carrier a stream uses
wire, shared_folder                     dtype and shape; where processes of one machine find each other's files
"""
