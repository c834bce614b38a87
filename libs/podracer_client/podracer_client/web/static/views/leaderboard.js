// The ranking, videos of the best, and what the aliases have pointed at.
// `#/jobs/ID/leaderboard/champion` films the first one.
import { post } from "../acts.js";
import { h, list, row, table } from "../dom.js";
import { touches } from "../news.js";
import { count, number, time } from "../text.js";
import { promoteButton } from "./agent.js";

const RANKS = ["Rank", "Agent", "Algorithm", "Score", "Mean", "95 % interval", "Confirmed", "Steps", "Aliases", "Acts"];
const HISTORY = ["No.", "Alias", "Decision", "Policy", "Why", "When"];

export function leaderboard(root) {
  const [ranking, body] = table("Ranked agents, the best first", RANKS);
  const [history, entries] = table("Promotions, the newest first", HISTORY);
  const [none, unfilmed, untold] = [
    h("p", { class: "muted" }, "No agent is ranked yet."),
    h("p", { class: "muted" }, "None yet: “Watch” beside a ranked agent films an episode."),
    h("p", { class: "muted" }, "Nothing was promoted yet."),
  ];
  const videos = h("div", { class: "videos", "aria-live": "polite" });
  root.replaceChildren(
    none,
    ranking,
    h("h2", null, "Videos"),
    unfilmed,
    videos,
    h("h2", null, "Promotions"),
    untold,
    history,
  );
  async function watch(job, agent) {
    const figure = h("figure", { id: `video-${agent}` }, `Filming ${agent} …`);
    document.getElementById(figure.id)?.remove();
    unfilmed.hidden = true;
    videos.prepend(figure);
    const [isThere, { video, text, message }] = await post("film", { job: job.name, agent });
    const film = isThere && h("video", { src: video, controls: true, autoplay: true, loop: true, "aria-label": agent });
    const told = isThere ? `${agent} ${text}` : `No video of ${agent}: ${message}`;
    figure.replaceChildren(film || "", h("figcaption", null, told));
  }
  let isShown = false;
  return (news, changed, { id, agent }) => {
    const { board, job, promotions = [] } = news.values;
    if (!job) return;
    if (agent === "champion" && board?.candidates.length && !isShown) {
      isShown = true;
      watch(job, board.candidates[0].agent);
    }
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
        (candidate) => candidateRow(id, job, candidate, watch),
      );
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

const candidateRow = (id, job, candidate, watch) =>
  row(
    String(candidate.rank),
    h("a", { href: `#/jobs/${id}/lineage/${candidate.agent}`, id: `rank-${candidate.agent}` }, candidate.agent),
    candidate.algorithm,
    number(candidate.score),
    number(candidate.mean),
    `${number(candidate.lower_bound)} to ${number(candidate.upper_bound)}`,
    candidate.exclusion
      ? h("span", { class: "warning", title: candidate.exclusion }, "⚠ breaks too often")
      : candidate.confirmed
        ? "yes"
        : "no",
    count(candidate.env_steps),
    candidate.aliases.join(", "),
    h(
      "div",
      { class: "acts" },
      watchButton(candidate.agent, () => watch(job, candidate.agent)),
      promoteButton(job, candidate.agent),
    ),
  );

const watchButton = (agent, onclick) =>
  h("button", { type: "button", id: `watch-${agent}`, "aria-label": `Watch ${agent}`, onclick }, "Watch");
