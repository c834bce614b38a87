"""`python -m podracer_policy`."""

from podracer_platform.service.process import main
from podracer_policy.server import PolicyConfig, serve

if __name__ == "__main__":
    main("policy", PolicyConfig, serve)
