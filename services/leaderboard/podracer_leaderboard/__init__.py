"""The leaderboard service: ranks the agents of a job and proposes the next ones, by the rules of
`podracer_core.evolution`.

competition    a board's spec -> rules, search space, and the installed generator and updater
guard          checks a generator's proposals; if one fails, the scheduler's own generator proposes
boards, proposals, submissions, evaluations, listings    the use cases, a few calls each
acts           what users ask of agents: to fork, pin or stop one; and calls of the
               orchestrator, each answered once
places         new agents, and candidates on the board
judged_rounds  rungs, curves and throughput, read from the rounds' rows
store, messages                                 shared by the use cases
tables, migrations                                       the database
server, __main__                                         the process
"""
