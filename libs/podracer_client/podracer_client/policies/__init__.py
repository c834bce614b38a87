"""Trained policies.

folders                       where those are that a user names
hub                           those in a repository of Hugging Face
evaluation, evaluation_text   evaluated by an evaluator, and the result as text
environment                   the environment they are evaluated in
serve, policy_client          served on this machine; asked for actions (`PolicyClient`)
"""
