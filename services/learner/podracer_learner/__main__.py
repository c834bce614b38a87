"""`python -m podracer_learner`."""

from podracer_learner.config import LearnerConfig
from podracer_learner.server import serve
from podracer_platform.service.process import main

if __name__ == "__main__":
    main("learner", LearnerConfig, serve)
