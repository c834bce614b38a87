"""What Podracer says of the maze without starting it; imports no torch."""

from __future__ import annotations

from podracer_core.catalogue import ArgumentInfo, EnvironmentInfo

MAZE = EnvironmentInfo(
    id="Maze-v0",
    description="Find the way from S to G",
    backend="installed",
    factory="maze.environment:Maze",
    arguments=(
        ArgumentInfo(
            "plan",
            "text file with one line a row: # wall, S start, G goal",
            required=True,
            example="./plan.txt",
            is_file=True,
        ),
    ),
)
