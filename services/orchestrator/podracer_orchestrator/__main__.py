"""`python -m podracer_orchestrator`: see config.py for its settings."""

from __future__ import annotations

import asyncio
import signal
import sys

from podracer_core.config import load_settings
from podracer_core.errors import PodracerError
from podracer_core.lifetime import exit_with_parent_if_asked
from podracer_core.telemetry.logging import configure_logging
from podracer_orchestrator.config import OrchestratorSettings
from podracer_orchestrator.server import create_server


async def serve(settings: OrchestratorSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server, address = await create_server(settings)
    await server.start()
    print(f"listening on {address}", flush=True)  # noqa: T201 - what a launcher waits for
    await stop.wait()
    await server.stop()


def main() -> int:
    """Exit code 0 after a signal, 2 where it could not be started."""
    try:
        exit_with_parent_if_asked()
        settings = load_settings(OrchestratorSettings)
        configure_logging("orchestrator", settings.log_level, settings.log_json)
        asyncio.run(serve(settings))
    except PodracerError as error:
        print(f"podracer_orchestrator: {error.message}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
