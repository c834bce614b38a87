"""The report of a job, or of an experiment of several: one HTML page and its figures.

records      what a report is made from: frozen, plain values
making       a report from its name: page, figures, short text
gather       RPC → records, in bounded memory
conversion   one message → one record
request      what was asked, in the words of a job file
versions     of what has taken part
thinning     at most so many of a long stream, evenly
families     who came from whom: order, living lines, the best one's ancestors
pods         when pods worked, from the job's events
throughput   environment steps a second over time
figures/     one module a figure (matplotlib)
html         elements, tables, meters; text is escaped here and nowhere else
style        the page's style sheet
page         the page around sections; written whole or not at all
agent_tables leaderboard, population, everybody
job_figures, job_page  the figures and the sections of a job
experiment   jobs of one experiment: grouped over seeds
experiment_page  its sections
"""
