"""Rollouts from workers.

source, rollouts                the workers' parts put together
crew, shares                    who has which environments; what becomes of those that are late or lost
link, collect_stream, discovery one worker and the stream to it; where they are
"""
