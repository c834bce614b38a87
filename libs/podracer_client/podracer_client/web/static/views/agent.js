// One agent: what it is, where it came from, and its promotion.
import { actButton } from "../acts.js";
import { h } from "../dom.js";
import { count, number, setting } from "../text.js";

export function agentPanel(job, agent) {
  const rows = [
    ["Algorithm", agent.algorithm],
    ["State", agent.state.toLowerCase() + (agent.failure && `: ${agent.failure}`)],
    ["Score", number(agent.score)],
    ["Began", agent.parents.length ? `${agent.start.toLowerCase()} of ${agent.parents.join(" and ")}` : "fresh"],
    ["Why", agent.reason || "–"],
    ["Steps", `${count(agent.env_steps)}, ${agent.rung} rounds`],
    ...Object.entries(agent.hyperparameters).map(([name, value]) => [name, setting(value)]),
  ];
  return h(
    "section",
    { class: "panel", "aria-label": `Agent ${agent.name}` },
    h("div", { class: "title" }, h("h2", null, agent.name), agent.score != null && promoteButton(job, agent.name)),
    h(
      "dl",
      { class: "rows" },
      rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
    ),
  );
}

export const promoteButton = (job, agent) =>
  actButton(
    "Promote",
    "promote",
    () => ({
      title: `Promote ${agent}?`,
      text: "The alias points at its best policy from then on; servers of the alias follow.",
      fields: [
        { name: "alias", label: "Alias (empty: champion, or what the job calls it)" },
        { name: "reason", label: "Why, for the history" },
      ],
      confirm: "Promote",
      asked: { job: job.name, agent },
    }),
    { id: `promote-${agent}`, "aria-label": `Promote ${agent}` },
  );

/** A colour variable for each algorithm, in the order in which they first come. */
export function algorithmColors(agents) {
  const names = [...new Set(agents.map(({ algorithm }) => algorithm))];
  return Object.fromEntries(names.map((name, place) => [name, `var(--series-${(place % 7) + 1})`]));
}

export const legend = (colors) =>
  h(
    "ul",
    { class: "legend" },
    Object.entries(colors).map(([name, value]) => {
      const mark = h("span", { class: "mark" });
      mark.style.background = value;
      return h("li", null, mark, name);
    }),
  );
