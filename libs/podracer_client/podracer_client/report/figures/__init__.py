"""The figures of a report, by matplotlib: imported only for a report, because the import takes a
second.

curves, comparison, hyperparameters, lineage, pods    one figure each
axes, palette, rendering                              shared parts; SVG and PNG
"""
