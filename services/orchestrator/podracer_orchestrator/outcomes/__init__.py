"""The effects of ended leases on their job: results, failures, challenges, the objective, stages
after training."""
