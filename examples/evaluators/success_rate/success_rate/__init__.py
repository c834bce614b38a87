"""The rate of episodes that end before their time limit."""
