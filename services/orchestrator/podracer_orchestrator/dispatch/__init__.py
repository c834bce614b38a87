"""LeaseWork and the calls of lease holders: assignment of work to pods, renewals and results."""
