"""The fusion of several learners of a cohort: pure functions on their parameters, and the lead's
state. No I/O.

state        the shared state and the learners' contributions; pooled statistics of normalizers
fusion       the interface of a fusion, for packages to implement, and the class of a fusion's name
built_in     mean, weighted, outer
fuse         contributions in, the shared state out; the table of contributions, with quorum and
             deadline

Learners exchange contributions through `podracer_core.training.epochs` and its `FusionTransport`.
"""
