// One job: where it stands, what can be done with it, and a view of it.
import { actButton } from "../acts.js";
import { h, list } from "../dom.js";
import { touches } from "../news.js";
import { count, duration, number, words } from "../text.js";
import { curves } from "./curves.js";
import { events } from "./events.js";
import { hyperparameters } from "./hyperparameters.js";
import { leaderboard } from "./leaderboard.js";
import { lineage } from "./lineage.js";
import { pods } from "./pods.js";

const VIEWS = {
  curves: ["Curves", curves],
  lineage: ["Population", lineage],
  leaderboard: ["Leaderboard", leaderboard],
  hyperparameters: ["Hyperparameters", hyperparameters],
  pods: ["Pods", pods],
  events: ["Events", events],
};

const WARNINGS = new Set(["WORLD_BROKE", "AGENT_EXCLUDED", "AGENT_FAILED", "ENVIRONMENT_WARNING", "ALGORITHM_SLOW"]);

export function job(root) {
  const [title, tiles, buttons, problem] = [h("h1"), h("dl", { class: "tiles" }), h("div", { class: "acts" }), h("p")];
  const warnings = h("a", { class: "warning", hidden: true });
  const [tabs, panel] = [h("nav", { "aria-label": "Views of the job", class: "tabs" }), h("section")];
  root.replaceChildren(h("div", { class: "title" }, title, warnings, buttons), problem, tiles, tabs, panel);
  let shown = "";
  let update;
  return (news, changed, { id, view, agent }) => {
    const name = view in VIEWS ? view : "curves";
    if (title.textContent !== id) title.textContent = id;
    list(
      tabs,
      Object.keys(VIEWS).map((key) => [key, key === name]),
      ([key]) => key,
      ([key, isShown]) => tab(id, key, isShown),
    );
    if (touches(changed, "events")) showWarnings(id, news.logs.events ?? []);
    if (touches(changed, "job", "figures", "promotions", "connection")) showHead(news.values);
    if (shown !== name) {
      shown = name;
      tabs.querySelector("[aria-current]").scrollIntoView({ block: "nearest", inline: "center" });
      panel.setAttribute("aria-label", VIEWS[name][0]);
      panel.replaceChildren();
      update = VIEWS[name][1](panel);
    }
    update(news, changed, { id, agent });
  };

  function showWarnings(id, events) {
    const found = events.filter(([, , kind]) => WARNINGS.has(kind)).map((event) => event.at(-1));
    warnings.hidden = !found.length;
    warnings.textContent = found.length === 1 ? "⚠ 1 warning" : `⚠ ${found.length} warnings`;
    warnings.title = found.join("\n");
    warnings.href = `#/jobs/${id}/events`;
  }

  function showHead({ job, figures, promotions = [], connection }) {
    problem.className = job?.problem || connection?.state === "gone" ? "problem" : "";
    const told = (connection?.state === "gone" ? connection.message : job?.problem) ?? "";
    if (problem.textContent !== told) problem.textContent = told;
    if (!job || !figures) return;
    list(
      tiles,
      figureTiles(job, figures),
      ([label]) => label,
      ([label, value, note]) =>
        h("div", null, h("dt", null, label), h("dd", null, value, note && h("small", null, note))),
    );
    list(
      buttons,
      possibleActs(job, promotions),
      (act) => act,
      (act) => ACTS[act](job),
    );
  }
}

const tab = (id, key, isShown) =>
  h("a", { href: `#/jobs/${id}/${key}`, id: `tab-${key}`, "aria-current": isShown && "page" }, VIEWS[key][0]);

const figureTiles = (job, figures) => [
  ["State", h("span", { class: `state ${job.result}` }, words(job.result)), words(job.state)],
  [
    `Best ${job.score_name}`,
    number(figures.best_score),
    figures.best_score == null
      ? ""
      : `${job.objective.statistic}, ${figures.best_confirmed ? "confirmed" : "not confirmed yet"}; mean ${number(figures.best_return)}`,
  ],
  ["Target", number(job.objective.target), job.objective.target == null ? "" : `for the ${job.objective.statistic}`],
  ["Steps", count(figures.live_env_steps), `${count(figures.env_steps_per_second)} a second`],
  [
    "Training time",
    duration(figures.train_seconds),
    figures.eta_seconds && `about ${duration(figures.eta_seconds)} left`,
  ],
  ["Agents", String(figures.agents), `${figures.rounds} rounds`],
  ["Pods", String(figures.pods), `${job.pod_count.min} to ${job.pod_count.max} asked for`],
];

function possibleActs(job, promotions) {
  const acts = job.ended ? ["delete"] : ["scale", job.state === "SUSPENDED" ? "resume" : "suspend", "cancel"];
  return promotions.length ? ["rollback", ...acts] : acts;
}

const simple = (label, act, text, destroys, done) => (job) =>
  actButton(
    label,
    act,
    () => ({ title: `${label} ${job.id}?`, text, confirm: label, asked: { job: job.name }, destroys, done }),
    { id: `act-${act}`, class: destroys && "destroys" },
  );

const ACTS = {
  suspend: simple("Suspend", "suspend", "Its pods write a last checkpoint and stop, until it is resumed."),
  resume: simple("Resume", "resume", "It goes on where it was suspended."),
  cancel: simple("Cancel", "cancel", "It ends for good; what it has reached stays.", true),
  delete: simple(
    "Delete",
    "delete",
    "The job, its leaderboard and its checkpoints are deleted.",
    true,
    () => (location.hash = "#/"),
  ),
  rollback: simple(
    "Roll back",
    "rollback",
    "Its alias points at the policy before again; servers of the alias follow.",
    true,
  ),
  scale: (job) =>
    actButton(
      "Scale",
      "scale",
      () => ({
        title: `Scale ${job.id}`,
        text:
          job.pod_count.learners > 1 ? `Teams of ${job.pod_count.learners} pods.` : "How many pods may work for it.",
        fields: ["min", "max"].map((name) => ({
          name,
          label: `At ${name === "min" ? "least" : "most"}`,
          type: "number",
          min: 1,
          required: true,
          value: job.pod_count[name],
        })),
        confirm: "Scale",
        asked: { job: job.name },
      }),
      { id: "act-scale" },
    ),
};
