"""The leaderboard service: ranks the agents of a job and proposes the next ones.

The domain, plain Python without database or torch:
agents         agents as generators see them, and the generators' answers
rules          how agents compete: population, rounds, selection
search_space   the search ranges of a job: complete hyperparameters for new agents, drawn or mutated
portfolio      the order in which fresh agents get them: the defaults, then a Sobol sequence
generator      the interface of generators (entry points `podracer.generators`)
tournament, generational, random_search, elite_sampling, optuna_search, halving    built-in
                                                                                   generators
rungs          the scores that an agent is judged against, and which agents have to give way
breeding       making new agents: parents, inheritance, shapes; seating: agents of a queue -> one
               cohort
updater        the interface of updaters (entry points `podracer.updaters`), the built-in ones, and
               the board's order
round_budget   how long a round may be, and how many members a cohort may have
elites         statistics of the elites and of lineages

Around it:
competition    a board's spec -> rules, search space, and the installed generator and updater
guard          checks a generator's proposals; if one fails, the scheduler's own generator proposes
boards, proposals, submissions, evaluations, listings    the use cases, a few calls each
new_agents, places    new agents, and candidates on the board
judged_rounds  rungs, curves and throughput, read from the rounds' rows
store, messages, changes                                 shared by the use cases
tables, migrations                                       the database
server, __main__                                         the process
"""
