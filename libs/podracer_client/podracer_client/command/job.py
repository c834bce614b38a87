"""`podracer job`."""

from __future__ import annotations

import sys

from podracer_client.command.options import JobName, Json, ServerOptions, with_server


@with_server
def job(server: ServerOptions, name: JobName, json: Json = False) -> None:
    """Show one job: its figures, pods and latest events; of a state folder also when nothing runs there."""
    from podracer_client.display.messages import job_json, write_json
    from podracer_client.display.numbers import time_text
    from podracer_client.display.snapshot import take_snapshot
    from podracer_client.display.summary import JobSummary
    from podracer_client.names import best_checkpoint_name

    with server.read() as client:
        found = client.job(name)
        pods = found.pods()
        events = found.latest_events()
    preparation = found.message.environment_description.preparation
    if json:
        write_json(job_json(found.message) | {"preparation": preparation or None})
        return
    checkpoint = best_checkpoint_name(found.name) if found.progress.best.checkpoint.prefix else ""
    lines = JobSummary(found.message, checkpoint).lines()
    if preparation:
        lines.append(f"prepared     {preparation}")
    for pod in take_snapshot(found.message, pods).pods:
        words = (pod.name, pod.state.lower(), pod.layout, " ".join(pod.agents), pod.message)
        lines.append(f"pod          {'  '.join(filter(None, words))}")
    lines += [f"event        {time_text(event.time)}  {event.kind}: {event.message}" for event in events]
    sys.stdout.write("\n".join(lines) + "\n")
