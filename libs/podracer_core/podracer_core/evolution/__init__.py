"""The rules by which agents compete, without a service or a database; no torch.

agents          a population and its members, as the generators see them
search_space    what hyperparameters agents may have; portfolio: configurations to begin with
generator       which agents a pod trains next: tournament, generational, elite_sampling, halving,
                optuna_search, random_search
breeding        the agents that replace others; elites: what the best ones have in common
seating         which agents share a cohort; round_budget: how long it trains
rungs           what agents are compared with
updater         the score of evaluations, and the admission of candidates
rules           the section `evolution` as these modules read it
"""
