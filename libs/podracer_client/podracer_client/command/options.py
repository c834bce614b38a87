"""The options that several commands share."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from podracer_client.display import Display
    from podracer_client.jobs import Client

JobFile = Annotated[
    Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, or the name in its job file if only one job has that name.",
        show_default=False,
    ),
]
Policies = Annotated[
    list[str],
    typer.Argument(
        metavar="CHECKPOINT|JOB",
        help="A checkpoint's folder, its name on a server "
        "(projects/default/jobs/JOB/checkpoints/best), a job (for its best policy), or "
        "hf://OWNER/REPO. Several policies form an ensemble; name the best one first.",
        show_default=False,
    ),
]
EnsembleSize = Annotated[
    int,
    typer.Option(
        "--ensemble", min=0, metavar="K", help="Use an ensemble of the job's K best candidates."
    ),
]
EnsembleRule = Annotated[
    str,
    typer.Option(
        "--rule",
        metavar="mean|vote",
        help="How an ensemble acts: by the mean of real-valued actions, or by vote over choices.",
        show_default="by action space",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change an argument of the environment, as in environment.kwargs of a job file; may "
        "be repeated.",
    ),
]
FiguresFolder = Annotated[
    Path | None,
    typer.Option(
        "--figures",
        metavar="DIR",
        help="Write every figure as SVG and PNG too.",
        show_default=False,
    ),
]
Trusted = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run the code of the policy's environment, which comes from the server, unasked.",
    ),
]
StateFolderOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The state folder.")]
MaxPods = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="The most pods to run. 0: as many as the machine has room for."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
Web = Annotated[bool, typer.Option("--web", help="Also serve a live web page, and print its URL.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print log lines instead of a live table.")]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The choice of a server on the command line."""

    folder: Path | None = None
    orchestrator: str | None = None
    leaderboard: str | None = None
    token_file: Path | None = None
    tls: Path | None = None
    context: str | None = None
    insecure: bool = False

    def arguments(self) -> list[str]:
        """The same on another command line."""
        values = {
            "--dir": self.folder,
            "--orchestrator": self.orchestrator,
            "--leaderboard": self.leaderboard,
            "--token-file": self.token_file,
            "--tls": self.tls,
            "--context": self.context,
        }
        words = [
            word
            for name, value in values.items()
            if value is not None
            for word in (name, str(value))
        ]
        return [*words, "--insecure"] if self.insecure else words

    def connect(self) -> Client:
        """Raises NotFound where no server is known, InvalidInput for an unreadable token."""
        from podracer_client.jobs import Client

        return Client.connect(
            self.orchestrator,
            self.leaderboard,
            token_file=self.token_file,
            tls=self.tls,
            folder=self.folder,
            context=self.context,
            allow_insecure=self.insecure,
        )

    def read(self, *, only_leaderboard: bool = False) -> AbstractContextManager[Client]:
        """The same, also of a state folder where nothing runs; see
        `podracer_client.local.services`."""
        from podracer_client.local import running_or_resting

        return running_or_resting(self.connect, self.folder, only_leaderboard=only_leaderboard)

    def full_job_name(self, job: str) -> str:
        """The resource name of a job that is given as `Client.job` takes it; also of a state folder
        at rest."""
        with self.read() as client:
            return client.full_name(job)


_SERVER_PARAMETERS: dict[str, Any] = {
    "folder": Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="The state folder of a `podracer up` or `run`.",
            show_default="runs",
        ),
    ],
    "orchestrator": Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the orchestrator.",
            show_default="$PODRACER_ORCHESTRATOR",
        ),
    ],
    "leaderboard": Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of the leaderboard.",
            show_default="$PODRACER_LEADERBOARD",
        ),
    ],
    "token_file": Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="File with the client token.", show_default="$PODRACER_TOKEN_FILE"
        ),
    ],
    "tls": Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with ca.pem, cert.pem, key.pem: talk TLS.",
            show_default="$PODRACER_TLS",
        ),
    ],
    "context": Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A server of `podracer context`.", show_default="$PODRACER_CONTEXT"
        ),
    ],
    "insecure": Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="PODRACER_ALLOW_INSECURE",
            show_envvar=False,
            help="Send the token in plain text beyond this machine.",
            show_default="$PODRACER_ALLOW_INSECURE",
        ),
    ],
}


def with_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which server to talk to, as its parameter `server:
    ServerOptions`."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "server"]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if name == "insecure" else None,
            annotation=annotation,
        )
        for name, annotation in _SERVER_PARAMETERS.items()
    ]

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        server = ServerOptions(**{name: kwargs.pop(name) for name in _SERVER_PARAMETERS})
        command(*args, server=server, **kwargs)

    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    # Typer reads both; `__wrapped__` would lead it to the command's own parameters.
    wrapped.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
    del wrapped.__wrapped__
    return wrapped


def choose_display(*, plain: bool, json: bool) -> Display:
    """JSON lines, or log lines when asked for or when stderr is no terminal, else the live
    table."""
    from podracer_client.display import JsonDisplay, PlainDisplay

    if json:
        return JsonDisplay(sys.stdout, sys.stderr)
    if plain or not sys.stderr.isatty():
        return PlainDisplay(sys.stdout, sys.stderr)
    from podracer_client.display import TableDisplay  # late: Rich takes a while

    return TableDisplay(sys.stdout)
