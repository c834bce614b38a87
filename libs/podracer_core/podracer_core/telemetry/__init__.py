"""What a service tells its operator; no torch.

logging   structured logs
"""
