"""How tensors cross between processes.

inline               in messages: always works
slots, staging       by memory that both have mapped: shared, or CUDA's (cuda_ipc)
negotiation          which carrier a stream uses
wire, shared_folder  dtype and shape; where processes of one machine find each other's files
"""
