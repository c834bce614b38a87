"""Rollouts from workers.

source, rollouts                the workers' parts put together
crew, shares                    which worker has which environments; late and lost workers
link, collect_stream, discovery one worker and the stream to it; where they are
"""
