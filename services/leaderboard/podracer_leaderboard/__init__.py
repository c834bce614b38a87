"""The leaderboard service: ranks the agents of a job and proposes the next ones.

The domain, plain Python without database, proto or torch:
agents         what an agent is to those who rank and breed
rules          how agents compete: population, rounds, selection
ranges         one search range: sampling and mutation
search_space   all ranges of a job: complete hyperparameters for new agents
generator      the interface of generators (entry points `podracer.generators`)
tournament     the built-in generator
updater        the interface of updaters (entry points `podracer.updaters`) and the built-in ones
ranking        who is on the board
round_budget   how long a round may be
elites         statistics of the elites and their lineages

Around it: names, spec, messages (protos to domain and back), tables and migrations, store (rows to domain and back),
proposals, submissions, aliases, boards (one use case each), watch, service, server, config.
"""
