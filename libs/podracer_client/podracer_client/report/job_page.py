"""The page of a job, section by section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from podracer_client.display.numbers import count_text, duration_text
from podracer_client.report import job_figures as figures
from podracer_client.report.agent_tables import (
    all_agents,
    leaderboard_table,
    number,
    population_table,
)
from podracer_client.report.figures.palette import LIGHT, series_colors
from podracer_client.report.figures.rendering import FigurePlan, Rendered, figure_element
from podracer_client.report.html import (
    Content,
    Markup,
    definitions,
    element,
    join,
    meter,
    page,
    section,
    table,
)
from podracer_client.report.records import Event, JobReport

ROUTINE = frozenset(
    {"LEASE_GRANTED", "FOLLOW_ENDED", "ROUND_COMPLETED", "COHORT_PROPOSED", "CANDIDATE_ADMITTED"}
)
_FIRST_EVENTS, _LAST_EVENTS = 20, 180


def job_page(
    report: JobReport, plans: Iterable[FigurePlan], rendered: Mapping[str, Rendered]
) -> str:
    """The document; `rendered` are the figures by name."""
    figure = {plan.name: figure_element(plan, rendered.get(plan.name)) for plan in plans}
    colors = _variables(report)
    nothing = (
        "" if report.evaluations else element("p", "Nothing was evaluated yet.", class_="muted")
    )
    return page(
        f"{report.name}: report",
        (
            _header(report),
            _problem(report),
            _tiles(report),
            section("What was asked", definitions(report.request)),
            section("Leaderboard", leaderboard_table(report, colors) or nothing),
            section("Champion", _champion(report)),
            section(
                "Learning curves", figure[figures.CURVES_BY_STEPS], figure[figures.CURVES_BY_TIME]
            ),
            section("Lineage", figure[figures.LINEAGE]),
            section("Hyperparameters over time", figure[figures.HYPERPARAMETERS]),
            section("Pods and throughput", figure[figures.PODS], _pods(report)),
            section("Budget", _budget(report)),
            section("Ensemble", _ensemble(report)),
            section("Trained once more", _retrained(report)),
            section("Continuous training", definitions(report.standing)),
            section("Population", population_table(report, colors), all_agents(report, colors)),
            section("Environment", definitions(report.environment)),
            section("Events", _events(report.events)),
            section("Versions", definitions(report.versions)),
            section("Notes", *(element("p", note) for note in report.notes)),
        ),
    )


def outcome_text(report: JobReport) -> str:
    """`target reached`, `target missed`, `budget used`, `nothing judged`, `failed`, `running`."""
    missed = report.outcome == "BUDGET_USED" and report.objective.target is not None
    return "target missed" if missed else (report.outcome or report.state).lower().replace("_", " ")


def _variables(report: JobReport) -> dict[str, str]:
    """Algorithm → CSS variable of its colour, the same as in the figures."""
    names = {color: name for name, color in LIGHT.items()}
    algorithms = series_colors(agent.algorithm for agent in report.agents)
    return {algorithm: f"var(--{names[color]})" for algorithm, color in algorithms.items()}


def _header(report: JobReport) -> Markup:
    since = f"created {report.created:%Y-%m-%d %H:%M:%S} UTC"
    until = (
        f"ended after {duration_text(report.end_s)}"
        if report.ended
        else f"as it was after {duration_text(report.now_s)}"
    )
    words = f"{report.environment_id} · {report.state.lower()} · {since} · {until} · {report.uid}"
    return element(
        "header", join((element("h1", report.name), element("p", words, class_="muted")))
    )


def _problem(report: JobReport) -> Markup:
    if report.problem is None:
        return Markup()
    problem = report.problem
    detail = element("pre", problem.detail) if problem.detail else Markup()
    return element(
        "div",
        join((element("strong", f"{problem.reason}: {problem.message}"), detail)),
        class_="problem",
    )


def _tiles(report: JobReport) -> Markup:
    best = report.best
    interval = "nothing judged yet"
    if best is not None:
        confirmed = "confirmed" if report.confirmed else "not confirmed"
        mean = (
            f"{report.objective.statistic}; mean {number(best.mean)}, 95 % interval "
            f"{number(best.lower)} to"
        )
        interval = f"{mean} {number(best.upper)}, {best.episodes} episodes, {confirmed}"
    target = report.objective.target
    wanted = (
        "no target"
        if target is None
        else f"target {number(target)} by the {report.objective.statistic}"
    )
    rate = (
        f"{count_text(report.env_steps / report.train_s)} a second"
        if report.train_s > 0
        else "none yet"
    )
    share = (
        f"{report.evaluation_cost_s / report.cost_s:.0%} of it evaluation"
        if report.cost_s > 0
        else "none yet"
    )
    tiles = (
        (outcome_text(report), f"after {duration_text(report.train_s)} of active time"),
        (number(report.best_score), f"best {report.score_name}; {interval}"),
        (duration_text(report.time_to_target_s), f"training time to the target; {wanted}"),
        (count_text(report.env_steps), f"environment steps; {rate}"),
        (f"{report.cost_s:,.1f}", f"device seconds; {share}"),
        (
            f"{report.agent_count:,}",
            f"agents; {report.completed_rounds:,} rounds, {report.evaluation_count:,} evaluations",
        ),
    )
    return element(
        "div",
        join(
            element("div", join((element("strong", what), element("span", of))), class_="tile")
            for what, of in tiles
        ),
        class_="tiles",
    )


def _champion(report: JobReport) -> Markup:
    source, text = report.video
    film = (
        element("video", src=source, controls="", loop="", aria_label="The champion acts")
        if source
        else ""
    )
    return element("figure", join((film, element("figcaption", text)))) if text else Markup()


def _pods(report: JobReport) -> Markup:
    """The pods that exist now."""
    if not report.pods:
        return Markup()
    rows = [
        (
            *(
                pod.name,
                pod.state.lower(),
                pod.layout.lower(),
                count_text(pod.env_steps_per_second),
            ),
            *(str(pod.restarts), pod.version, pod.message),
        )
        for pod in report.pods
    ]
    titles = ("pod", "state", "layout", "steps/s", "restarts", "version", "message")
    return table(
        titles,
        rows,
        right=("steps/s", "restarts"),
        long=("message",),
        caption="Pods that are there now.",
    )


def _budget(report: JobReport) -> Markup:
    wanted = report.objective
    used = (
        ("environment steps", report.env_steps, wanted.max_env_steps, count_text),
        ("active time", report.train_s, wanted.max_duration_s, duration_text),
        ("device seconds", report.cost_s, wanted.max_cost_s, lambda value: f"{value:,.1f}"),
    )
    bars = [
        meter(name, value / limit if limit else 0.0, f"{text(value)} of {text(limit)}")
        for name, value, limit, text in used
        if limit is not None
    ]
    if report.cost_s > 0:
        share = report.evaluation_cost_s / report.cost_s
        text = f"{report.evaluation_cost_s:,.1f} of {report.cost_s:,.1f} device seconds"
        bars.append(meter("evaluation", share, text))
    return join(bars)


def _ensemble(report: JobReport) -> Markup:
    ensemble = report.ensemble
    if ensemble is None:
        return Markup()
    rows: list[tuple[str, Content]] = [
        ("agents", ", ".join(ensemble.agents)),
        ("act together by", ensemble.rule),
    ]
    if ensemble.evaluation is not None:
        own = ensemble.evaluation
        interval = f"{number(own.lower)} to {number(own.upper)}"
        rows.append((report.score_name, f"{number(own.mean)}, 95 % interval {interval}"))
        rows.append(("episodes", f"{own.episodes:,}"))
    ranked = [
        candidate.evaluation.mean
        for candidate in report.candidates
        if candidate.agent in ensemble.agents
    ]
    if ranked:
        rows.append(("their own means", ", ".join(map(number, ranked))))
    return definitions(rows)


def _retrained(report: JobReport) -> Markup:
    """The final policy of the job, if it is not the best candidate."""
    if not report.retrained:
        return Markup()
    return element(
        "p", f"{report.retrained}. It was not evaluated; it is the policy that the job ends with."
    )


def _events(events: Iterable[Event]) -> Markup:
    """The events that are not routine; of very many the first and the last."""
    important = [event for event in events if event.kind not in ROUTINE]
    if not important:
        return Markup()
    shown = important
    caption = "Without the routine: leases, rounds, proposals, places on the leaderboard."
    if len(important) > _FIRST_EVENTS + _LAST_EVENTS:
        shown = important[:_FIRST_EVENTS] + important[-_LAST_EVENTS:]
        caption += f" The first {_FIRST_EVENTS} and the last {_LAST_EVENTS} of {len(important):,}."
    rows = [
        (duration_text(event.time_s), event.kind, event.subject, event.message) for event in shown
    ]
    return table(
        ("after", "event", "about", "what"), rows, right=("after",), long=("what",), caption=caption
    )
