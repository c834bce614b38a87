"""What ended leases mean for their job: results, failures, challenges, the objective, the stages after training."""
