"""Rollouts from workers.

source, rollouts                rollouts joined from the workers' parts
crew, shares                    which worker has which environments; late and lost workers
link, discovery                 one worker and the stream to it; finding workers
"""
