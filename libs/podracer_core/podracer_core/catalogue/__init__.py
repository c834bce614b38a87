"""Names, spaces and hyperparameters of what Podracer has built in; imports neither torch nor gymnasium."""
