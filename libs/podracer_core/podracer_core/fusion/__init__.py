"""Several learners of one cohort become one: pure functions on their parameters, and the state of a lead. No I/O.

state        what learners share, and what each brings to a fusion; normalizers' statistics, pooled
fusion       the interface of a fusion, for packages to implement, and the class behind a fusion's name
built_in     mean, weighted, outer
fuse         contributions in, the shared state out; the table of contributions, with quorum and deadline

How learners exchange what they bring: `podracer_core.training.epochs` and what implements its `FusionTransport`.
"""
