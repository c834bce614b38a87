"""How sure numbers are of what they say; no torch.

student_t   quantiles of Student's distribution
bootstrap   intervals of statistics of dependent values (NumPy)
"""
