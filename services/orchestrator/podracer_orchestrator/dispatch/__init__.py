"""LeaseWork and the calls of lease holders: which pod gets which work, and what comes of renewals and results."""
