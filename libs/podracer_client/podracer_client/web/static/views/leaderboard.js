// The ranking, videos of the best, and what the aliases have pointed at.
import { h, list, row, table } from "../dom.js";
import { touches } from "../news.js";
import { count, number, time } from "../text.js";
import { promoteButton } from "./agent.js";

const HISTORY = ["No.", "Alias", "Decision", "Policy", "Why", "When"];

export function leaderboard(root) {
  const [ranking, body] = table("Ranked agents, the best first", [
    "Rank",
    "Agent",
    "Algorithm",
    "Score",
    "Mean",
    "95 % interval",
    "Confirmed",
    "Steps",
    "Aliases",
    "",
  ]);
  const [history, entries] = table("Promotions, the newest first", HISTORY);
  const [none, videos, untold] = [
    h("p", { class: "muted" }, "No agent is ranked yet."),
    h("div", { class: "videos" }),
    h("p", { class: "muted" }, "Nothing was promoted yet."),
  ];
  root.replaceChildren(
    none,
    ranking,
    h("h2", null, "Videos of the best"),
    videos,
    h("h2", null, "Promotions"),
    untold,
    history,
  );
  return (news, changed, { id }) => {
    const { board, job, promotions = [] } = news.values;
    if (!job) return;
    if (touches(changed, "board", "job")) {
      const candidates = board?.candidates ?? [];
      none.hidden = candidates.length > 0;
      ranking.hidden = !candidates.length;
      const aliases = (agent) => Object.keys(board.aliases).filter((alias) => board.aliases[alias] === agent);
      const rows = candidates.map((candidate) => ({ ...candidate, aliases: aliases(candidate.agent) }));
      list(
        body,
        rows,
        ({ agent }) => agent,
        (candidate) => candidateRow(id, job, candidate),
      );
      const filmed = candidates.filter(({ video }) => video).map(({ agent, video }) => [agent, video]);
      list(videos, filmed.length ? filmed : [["", ""]], ([agent]) => agent, film);
    }
    if (touches(changed, "promotions")) {
      untold.hidden = promotions.length > 0;
      history.hidden = !promotions.length;
      list(
        entries,
        promotions,
        ({ position }) => position,
        (each) =>
          row(
            String(each.position),
            each.alias,
            each.decision.toLowerCase().replaceAll("_", " "),
            each.policy,
            each.reason,
            time(each.time),
          ),
      );
    }
  };
}

const candidateRow = (id, job, candidate) =>
  row(
    String(candidate.rank),
    h("a", { href: `#/jobs/${id}/lineage/${candidate.agent}`, id: `rank-${candidate.agent}` }, candidate.agent),
    candidate.algorithm,
    number(candidate.score),
    number(candidate.mean),
    `${number(candidate.lower_bound)} to ${number(candidate.upper_bound)}`,
    candidate.confirmed ? "yes" : "no",
    count(candidate.env_steps),
    candidate.aliases.join(", "),
    promoteButton(job, candidate.agent),
  );

const film = ([agent, video]) =>
  video
    ? h("figure", null, h("video", { src: video, controls: true, preload: "none" }), h("figcaption", null, agent))
    : h("p", { class: "muted" }, "No video yet.");
