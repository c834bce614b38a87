"""The leaderboard service: ranks the agents of a job and proposes the next ones.

The domain, plain Python without database or torch:
agents         what an agent is to those who rank and breed
rules          how agents compete: the job's evolution, every default filled in
ranges         sampling from a search range, and mutating inside it
search_space   all ranges of a job: complete hyperparameters for new agents
generator      the interface of generators (entry points `podracer.generators`)
tournament, generational, random_search, elite_sampling, optuna_search    built-in generators
rungs          whom an agent is judged against, and who has to give way
breeding       making new agents: parents, inheritance, shapes; seating: who goes into one cohort
guard          checks what a generator proposed, and has the scheduler's own one stand in for it
updater        the interface of updaters (entry points `podracer.updaters`) and the built-in ones
ranking        who is on the board
round_budget   how long a round may be; packing: how many members a cohort may have
elites         statistics of the elites and of lineages
seeds          random streams

Around it:
competition    a board's spec -> rules, search space, generator, updater; extensions: finds the last two
boards, proposals, submissions, evaluations, aliases, listings    the use cases, a few calls each
judged_rounds  rungs, curves and throughput, read from the rounds' rows
store, messages, pages, names, changes                            what they share
tables, migrations                                                what lasts
service, server, config, __main__                                 the process
"""
