"""The page of a job, section by section, and its figures with their captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from podracer_client.display import (
    count_text,
    duration_text,
    hyperparameters_text,
    origin_text,
    retrained_text,
    return_text,
    telling_names,
)
from podracer_client.jobs import Agent, Event, History, best_first
from podracer_client.report.figures import (
    MAX_AGENTS,
    MAX_LINES,
    MAX_NAMES,
    MAX_PODS,
    FigurePlan,
    Rendered,
    draw_curves,
    draw_hyperparameters,
    draw_lineage,
    draw_pods,
    drawn_names,
    figure_element,
)
from podracer_client.report.html import (
    LIGHT,
    Content,
    Markup,
    definitions,
    element,
    header,
    join,
    meter,
    page,
    section,
    series_colors,
    table,
    tiles,
)
from podracer_client.report.request import environment_rows, request_rows
from podracer_client.report.timelines import LIVING, pod_histories

CURVES_BY_STEPS, CURVES_BY_TIME = "returns-by-steps", "returns-by-time"
LINEAGE, HYPERPARAMETERS, PODS = "lineage", "hyperparameters", "pods"


def job_figures(report: History) -> tuple[FigurePlan, ...]:
    """The figures, not drawn yet."""
    return (
        FigurePlan(
            CURVES_BY_STEPS,
            "Evaluations against environment steps",
            f"Every evaluation of {_part_of(len(report.agents), MAX_LINES, 'agents')}, losers too; "
            "a child's line begins at its parent's. Bold: the line of the best. Circles: the "
            "leaderboard with 95 % intervals, filled where confirmed with fresh seeds.",
            partial(draw_curves, report, by_time=False),
        ),
        FigurePlan(
            CURVES_BY_TIME,
            "Evaluations against time",
            "The same evaluations, when they were made.",
            partial(draw_curves, report, by_time=True),
        ),
        FigurePlan(
            LINEAGE,
            "Lineage",
            f"{_part_of(len(report.agents), MAX_AGENTS, 'agents').capitalize()}: a bar from its "
            "proposal to its last evaluation, below the parent from whose weights it began, with "
            "its best score and its place on the leaderboard. Pale: lines that died out; a stroke "
            "at the end: replaced; a cross: failed.",
            partial(draw_lineage, report),
        ),
        FigurePlan(
            HYPERPARAMETERS,
            "Hyperparameters over time",
            f"What was searched{_most(report)}: a line for each judged agent over its life, the "
            "better the more orange; bold: on the leaderboard.",
            partial(draw_hyperparameters, report),
        ),
        FigurePlan(
            PODS,
            "Pods over time",
            f"{_part_of(_pod_count(report), MAX_PODS, 'pods', 'first').capitalize()}: a box for "
            "each piece of work. The steps a second are counted between evaluations.",
            partial(draw_pods, report),
        ),
    )


def _part_of(count: int, limit: int, what: str, chosen: str = "most telling") -> str:
    """`all 8 agents`, `the only agent`, `the 80 most telling of 500 agents`."""
    if count > limit:
        return f"the {limit} {chosen} of {count:,} {what}"
    return f"the only {what.removesuffix('s')}" if count == 1 else f"all {count:,} {what}"


MAX_ROWS = 300
_NUMBERS = (
    "rank",
    "score",
    "best score",
    "mean",
    "95 % interval",
    "episodes",
    "steps",
    "device s",
    "rounds",
)
ROUTINE = frozenset(
    {"LEASE_GRANTED", "FOLLOW_ENDED", "ROUND_COMPLETED", "COHORT_PROPOSED", "CANDIDATE_ADMITTED"}
)
_FIRST_EVENTS, _LAST_EVENTS = 20, 180


def _most(report: History) -> str:
    return (
        f" (the {MAX_NAMES} that most agents have)" if len(drawn_names(report)) == MAX_NAMES else ""
    )


def _pod_count(report: History) -> int:
    return len(pod_histories(report.events, report.now_s))


def leaderboard_table(report: History, colors: Mapping[str, str]) -> Markup:
    """The ranking as a table; empty if no agent is ranked."""
    if not report.candidates:
        return Markup()
    agents = {agent.name: agent for agent in report.agents}
    ranked = [
        agents[candidate.agent] for candidate in report.candidates if candidate.agent in agents
    ]
    telling = telling_names((agent.algorithm, agent.hyperparameters) for agent in ranked)
    rows: list[list[Content]] = []
    for candidate in report.candidates:
        evaluation, agent = candidate.evaluation, agents.get(candidate.agent)
        rows.append(
            [
                str(candidate.rank),
                candidate.agent,
                algorithm(agent.algorithm, colors) if agent else "",
                number(candidate.score),
                number(evaluation.mean),
                f"{number(evaluation.lower)} to {number(evaluation.upper)}",
                f"{evaluation.episodes:,}",
                "yes" if candidate.confirmed else "no",
                count_text(evaluation.env_steps),
                f"{agent.cost_s:,.1f}" if agent else "",
            ]
        )
    below = [
        _sentence(
            candidate.note,
            origin(agent),
            hyperparameters_text(agent.hyperparameters, telling[agent.algorithm]),
        )
        if (agent := agents.get(candidate.agent))
        else ""
        for candidate in report.candidates
    ]
    titles = (
        "rank",
        "agent",
        "algorithm",
        "score",
        "mean",
        "95 % interval",
        "episodes",
        "confirmed",
        "steps",
        "device s",
    )
    caption = (
        f"The score is the {report.objective.statistic}. Confirmed: evaluated a second time, with "
        "fresh seeds. Steps: of the agent and its ancestors up to this snapshot; device seconds: "
        "all that they have had. Hyperparameters: those that differ between these agents or from "
        "their defaults."
    )
    return table(titles, rows, right=_NUMBERS, below=below, caption=caption)


def population_table(report: History, colors: Mapping[str, str]) -> Markup:
    """The agents of the final population, the best first."""
    living = [agent for agent in report.agents if agent.state in LIVING]
    return _agent_table(report, best_first(living), colors)


def all_agents(report: History, colors: Mapping[str, str]) -> Markup:
    """All agents, in a collapsed section."""
    if not report.agents:
        return Markup()
    summary = element("summary", f"All {len(report.agents):,} agents, oldest first")
    return element("details", join((summary, _agent_table(report, report.agents, colors))))


def algorithm(name: str, colors: Mapping[str, str]) -> Markup:
    """The algorithm with a mark in its colour."""
    mark = (
        element("span", "", class_="mark", style=f"background:{colors[name]}")
        if name in colors
        else Markup()
    )
    return Markup(mark + element("span", name))


def origin(agent: Agent) -> str:
    """`from a0003`, and the agent that it replaced."""
    return origin_text(agent.start, agent.parents, agent.replaced)


def number(value: float | None) -> str:
    return return_text(value).replace("-", "−")


def _agent_table(report: History, agents: Iterable[Agent], colors: Mapping[str, str]) -> Markup:
    people = list(agents)
    if not people:
        return Markup()
    telling = telling_names((agent.algorithm, agent.hyperparameters) for agent in report.agents)
    rows: list[list[Content]] = [
        [
            agent.name,
            algorithm(agent.algorithm, colors),
            agent.state.lower(),
            number(agent.score),
            count_text(agent.env_steps),
            f"{agent.cost_s:,.1f}",
            str(agent.rung),
        ]
        for agent in people[:MAX_ROWS]
    ]
    below = [
        _sentence(
            f"{origin(agent)} ({agent.failure or agent.reason or 'no reason given'})",
            agent.exclusion and f"cannot be first: {agent.exclusion}",
            hyperparameters_text(agent.hyperparameters, telling[agent.algorithm]),
        )
        for agent in people[:MAX_ROWS]
    ]
    titles = ("agent", "algorithm", "state", "best score", "steps", "device s", "rounds")
    note = f"The first {MAX_ROWS:,} of {len(people):,}." if len(people) > MAX_ROWS else ""
    return table(titles, rows, right=_NUMBERS, below=below, caption=note)


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def job_page(
    report: History,
    plans: Iterable[FigurePlan],
    rendered: Mapping[str, Rendered],
    *,
    versions: Iterable[tuple[str, str]] = (),
    video: tuple[str, str] = ("", ""),
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
            section("What was asked", definitions(request_rows(report.job.spec))),
            section("Leaderboard", leaderboard_table(report, colors) or nothing),
            section("Champion", _champion(*video)),
            section("Learning curves", figure[CURVES_BY_STEPS], figure[CURVES_BY_TIME]),
            section("Lineage", figure[LINEAGE]),
            section("Hyperparameters over time", figure[HYPERPARAMETERS]),
            section("Pods and throughput", figure[PODS], _pods(report)),
            section("Budget", _budget(report)),
            section("Ensemble", _ensemble(report)),
            section("Trained once more", _retrained(report)),
            section("Continuous training", definitions(report.standing.items())),
            section("Population", population_table(report, colors), all_agents(report, colors)),
            section("Environment", definitions(environment_rows(report))),
            section("Events", _events(report.events)),
            section("Versions", definitions(versions)),
            section("Notes", *(element("p", note) for note in report.omissions)),
        ),
    )


def outcome_text(report: History) -> str:
    """`target reached`, `target missed`, `budget used`, `nothing judged`, `failed`, `running`."""
    missed = report.outcome == "BUDGET_USED" and report.objective.target is not None
    return "target missed" if missed else (report.outcome or report.state).lower().replace("_", " ")


def _variables(report: History) -> dict[str, str]:
    """Algorithm → CSS variable of its colour, the same as in the figures."""
    names = {color: name for name, color in LIGHT.items()}
    algorithms = series_colors(agent.algorithm for agent in report.agents)
    return {algorithm: f"var(--{names[color]})" for algorithm, color in algorithms.items()}


def _header(report: History) -> Markup:
    since = f"created {report.created:%Y-%m-%d %H:%M:%S} UTC"
    until = (
        f"ended after {duration_text(report.end_s)}"
        if report.ended
        else f"as it was after {duration_text(report.now_s)}"
    )
    words = (
        f"{report.environment_id} · {report.state.lower()} · {since} · {until} · {report.job.uid}"
    )
    return header(report.name, words)


def _problem(report: History) -> Markup:
    if report.problem is None:
        return Markup()
    problem = report.problem
    detail = element("pre", problem.detail) if problem.detail else Markup()
    return element(
        "div",
        join((element("strong", f"{problem.reason}: {problem.message}"), detail)),
        class_="problem",
    )


def _tiles(report: History) -> Markup:
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
    figures = (
        (outcome_text(report), f"after {duration_text(report.train_s)} of active time"),
        (number(report.best_score), f"best {report.score_title}; {interval}"),
        (duration_text(report.time_to_target_s), f"training time to the target; {wanted}"),
        (count_text(report.env_steps), f"environment steps; {rate}"),
        (f"{report.cost_s:,.1f}", f"device seconds; {share}"),
        (
            f"{report.agent_count:,}",
            f"agents; {report.completed_rounds:,} rounds, {report.evaluation_count:,} evaluations",
        ),
    )
    return tiles((element("strong", what), element("span", of)) for what, of in figures)


def _champion(source: str, text: str) -> Markup:
    film = (
        element("video", src=source, controls="", loop="", aria_label="The champion acts")
        if source
        else ""
    )
    return element("figure", join((film, element("figcaption", text)))) if text else Markup()


def _pods(report: History) -> Markup:
    """The pods that exist now."""
    if not report.pods:
        return Markup()
    rows = [
        (
            pod.name,
            pod.state.lower(),
            pod.layout.lower(),
            count_text(pod.env_steps_per_second),
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


def _budget(report: History) -> Markup:
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


def _ensemble(report: History) -> Markup:
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
        rows.append((report.score_title, f"{number(own.mean)}, 95 % interval {interval}"))
        rows.append(("episodes", f"{own.episodes:,}"))
    ranked = [
        candidate.evaluation.mean
        for candidate in report.candidates
        if candidate.agent in ensemble.agents
    ]
    if ranked:
        rows.append(("their own means", ", ".join(map(number, ranked))))
    return definitions(rows)


def _retrained(report: History) -> Markup:
    """The final policy of the job, if it is not the best candidate."""
    if not report.job.HasField("retrained"):
        return Markup()
    return element(
        "p",
        f"{retrained_text(report.job)}. It was not evaluated; it is the policy that the job ends "
        "with.",
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
