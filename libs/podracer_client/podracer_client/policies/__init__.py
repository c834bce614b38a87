"""Trained policies.

folders                       finds the policies that a user names
hub                           policies in a repository of Hugging Face
evaluation                    evaluation by an evaluator, and the result as text
environment                   the environment of an evaluation
serve, policy_client          serving on this machine; a client for actions (`PolicyClient`)
"""
