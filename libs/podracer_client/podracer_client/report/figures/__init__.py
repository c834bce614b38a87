"""The figures of a report, by matplotlib: imported only where a report is made, because that takes a second.

palette       colours; in a page they become CSS variables, so that both themes are legible
axes          axes without clutter, numbers and times on them
rendering     a drawn figure as SVG (a file, or inline in a page) and as PNG; the same data, the same bytes
curves        returns against environment steps, and against time
lineage       who came from whom
hyperparameters  where the search went
pods          pods over time, and their throughput
comparison    the jobs of an experiment: best score against time, small multiples
"""
