"""Commands on trained policies: evaluate, export, serve, film, push."""

from __future__ import annotations

import enum
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from podracer_client.command.options import (
    EnsembleRule,
    EnsembleSize,
    Json,
    Policies,
    ServerOptions,
    Settings,
    Trusted,
    with_server,
)
from podracer_client.display import write_json
from podracer_client.files import require_writable
from podracer_client.names import is_job_name, short_name
from podracer_core.errors import InvalidInput

if TYPE_CHECKING:
    from podracer.evaluator.v1 import evaluator_service_pb2

_EXPORT_TIMEOUT_S = 600.0
_TOLERANCE = 1e-4


@with_server
def evaluate(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    episodes: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000,
            metavar="N",
            help="Episodes with fresh seeds. 0: those of the job's result again, or those stored "
            "with the checkpoint; 100 fresh ones for an ensemble.",
        ),
    ] = 0,
    settings: Settings = None,
    trust: Trusted = False,
    json: Json = False,
) -> None:
    """Evaluate a policy on the episodes that judged it, on fresh ones, or in a changed environment.
    An ensemble is compared with each of its policies."""
    from podracer_client.local import private_evaluator
    from podracer_client.policies import (
        Trust,
        bring_files,
        changed_environment,
        evaluate_alone,
        evaluate_together,
        parsed_arguments,
        stored_policies,
    )
    from podracer_client.policies import evaluation as texts

    arguments = parsed_arguments(settings or ())
    with (
        stored_policies(policies, ensemble, server.connect, server.folder) as stored,
        private_evaluator() as evaluator,
    ):
        folders = [each.folder for each in stored]
        bring_files(evaluator, folders[0], server.connect, Trust(server.folder, trust))
        changed = changed_environment(folders[0], arguments)
        if len(folders) > 1:
            found = evaluate_together(
                evaluator, folders, rule=rule, episodes=episodes, environment=changed
            )
            _show(
                json, texts.together_json(found, arguments), texts.together_text(found, arguments)
            )
            return
        response = evaluate_alone(
            evaluator, stored[0], rule=rule, episodes=episodes, environment=changed
        )
    _show(json, texts.alone_json(response, arguments), texts.alone_text(response, arguments))
    if response.HasField("largest_difference") and response.largest_difference > _TOLERANCE:
        sys.stderr.write(
            "podracer: the returns differ from the stored ones. Was the policy trained on another "
            "kind of machine, or with another version of its environment, or does the environment "
            "ignore the seed of reset?\n"
        )


def _show(as_json: bool, values: dict[str, Any], text: str) -> None:
    if as_json:
        write_json({"event": "evaluation", **values})
    else:
        sys.stdout.write(text)


class Format(enum.StrEnum):
    """Form of an exported policy."""

    TORCH_EXPORT = "torch-export"
    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"


_HOW_TO_LOAD = {
    Format.TORCH_EXPORT: "torch.export.load({path!r}).module()(observation)",
    Format.TORCHSCRIPT: "torch.jit.load({path!r})(observation)",
    Format.ONNX: "onnxruntime.InferenceSession({path!r}).run(None, {{'observation': "
    "observation}})[0]",
}


@with_server
def export(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")
    ] = Path("policy.pt2"),
    form: Annotated[
        Format, typer.Option("--format", help="Form of the policy.")
    ] = Format.TORCH_EXPORT,
    json: Json = False,
) -> None:
    """Export a policy or an ensemble, with its normalization, to a file that works without
    Podracer."""
    require_writable(output)

    from podracer.evaluator.v1 import evaluator_service_pb2
    from podracer_client.local import private_evaluator
    from podracer_client.policies import policy_folders, rule_text, sources, write_pieces

    with (
        policy_folders(policies, ensemble, server.connect, server.folder) as folders,
        private_evaluator() as evaluator,
    ):
        request = evaluator_service_pb2.ExportPolicyRequest(
            checkpoints=sources(folders),
            format=evaluator_service_pb2.ExportFormat.Value(f"EXPORT_FORMAT_{form.name}"),
            ensemble=rule,
        )
        header: evaluator_service_pb2.ExportHeader = write_pieces(
            evaluator.ExportPolicy(request, timeout=_EXPORT_TIMEOUT_S), output
        )
    together = (rule or rule_text(header.description)) if len(folders) > 1 else ""
    if json:
        values = {
            "event": "exported",
            "path": str(output),
            "size_bytes": header.size_bytes,
            "sha256": header.sha256,
        }
        values |= {"policies": len(folders), "ensemble": together or None}
        values |= {
            "largest_difference": header.largest_difference,
            "observations": header.compared_count,
        }
        write_json({**values, "played_observations": header.played_count})
        return
    what = f" of {len(folders)} policies, together by {together}" if together else ""
    whose = "theirs" if together else "the trained policy's"
    seen = (
        f", {header.played_count} of them from episodes" if header.played_count else ", all made up"
    )
    sys.stdout.write(
        f"wrote {output}{what} ({header.size_bytes:,} bytes); its actions differ from {whose} by "
        f"{header.largest_difference:.2g} at most on {header.compared_count} observations{seen}\n"
        f"load it with {_HOW_TO_LOAD[form].format(path=str(output))}\n"
    )


@with_server
def serve(
    server: ServerOptions,
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]POLICY",
            help="A checkpoint's folder, its name on a server, a job (for its best policy), or "
            "JOB@ALIAS: the policy of that alias, replaced when the alias moves. Policies of one "
            "NAME form an ensemble; name the best first.",
            show_default=False,
        ),
    ],
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address that the policy server listens on.")
    ] = "127.0.0.1:7710",
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the tokens that the server accepts; made if missing.",
            show_default="runs/tokens",
        ),
    ] = None,
    follow_interval: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="How often to check where an alias points."),
    ] = 5.0,
) -> None:
    """Serve policies to clients over gRPC until Ctrl-C. One server holds many policies."""
    from podracer_client.policies import ServeOptions, keep_serving
    from podracer_client.servers import DEFAULT_FOLDER

    folder = tokens or (server.folder or DEFAULT_FOLDER) / "tokens"
    options = ServeOptions(
        listen, folder.absolute(), rule, follow_interval, server.tls, server.insecure
    )
    raise typer.Exit(keep_serving(policies, ensemble, options, server.connect, server.folder))


@with_server
def video(
    server: ServerOptions,
    policies: Policies,
    ensemble: EnsembleSize = 0,
    rule: EnsembleRule = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="The file to write, .mp4 or .gif.",
            show_default="POLICY.mp4",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the episode.")] = 0,
    steps: Annotated[
        int,
        typer.Option(
            min=0,
            max=100_000,
            metavar="N",
            help="The most steps to film. 0: 10,000.",
            show_default=False,
        ),
    ] = 0,
    settings: Settings = None,
    trust: Trusted = False,
    json: Json = False,
) -> None:
    """Film one episode of a policy or an ensemble. Needs an environment that draws pictures."""
    output = output or Path(f"{_title(policies[0])}.mp4")
    if output.suffix not in (".mp4", ".gif"):
        raise InvalidInput(
            f"--output {output}: expected a name that ends with .mp4 or .gif", path=output
        )
    require_writable(output)

    from podracer_client.policies import parsed_arguments, record, video_text

    arguments = parsed_arguments(settings or ())
    header = record(
        *(policies, output, server.connect, server.folder),
        best=ensemble,
        arguments=arguments,
        trusted=trust,
        ensemble=rule,
        seed=seed,
        step_limit=steps,
    )
    if json:
        write_json({"event": "video", "path": str(output), **video_json(header)})
    else:
        sys.stdout.write(f"wrote {output} ({video_text(header)})\n")


def video_json(header: evaluator_service_pb2.VideoHeader) -> dict[str, object]:
    """A video's size, length, return, agent and environment, as JSON values."""
    return {
        "size_bytes": header.size_bytes,
        "steps": header.frame_count - 1,
        "return": header.episode_return,
        "complete": header.complete,
        "agent": header.description.agent,
        "environment": header.description.environment.id
        or header.description.environment.entry_point,
    }


def _title(policy: str) -> str:
    """`pendulum` for a job, and for `projects/default/jobs/pendulum/checkpoints/best`; a folder's
    own name."""
    policy = policy.rstrip("/")
    title = policy.split("/")[3] if policy.endswith("/checkpoints/best") else short_name(policy)
    return title.strip(".") or "policy"


@with_server
def push(
    server: ServerOptions,
    policy: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT|JOB",
            help="A checkpoint's folder or name, or a job (for its best policy).",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="hf://OWNER/REPO|mlflow:MODEL_NAME@URI",
            show_default=False,
            help="The destination.",
        ),
    ],
    video: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A video of the policy.",
            exists=True,
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    json: Json = False,
) -> None:
    """Upload a policy with a model card: checkpoint, curves, job, versions and metrics."""
    from podracer_client.sharing import check_destination, push

    check_destination(destination)

    from podracer_client.policies import is_there, policy_folders
    from podracer_client.sharing import write_share

    with tempfile.TemporaryDirectory(prefix="podracer-push-") as folder, ExitStack() as held:
        (checkpoint,) = held.enter_context(
            policy_folders([policy], 0, server.connect, server.folder)
        )
        is_job = is_job_name(policy) and not is_there(policy)
        client = held.enter_context(server.read()) if is_job else None
        metrics = write_share(Path(folder), checkpoint, client, policy, video)
        made = push(Path(folder), destination, metrics, public=public)
    if json:
        write_json({"event": "pushed", "to": made, **metrics})
    else:
        sys.stdout.write(f"pushed {made}\n")
