"""The evaluator: judges policies, inspects environments, exports policies. What needs torch and is no training."""
