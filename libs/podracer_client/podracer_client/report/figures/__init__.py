"""The figures of a report, by matplotlib: imported only where a report is made, because that takes a second.

curves, comparison, hyperparameters, lineage, pods    one figure each
axes, palette, rendering                              what they share; SVG and PNG
"""
