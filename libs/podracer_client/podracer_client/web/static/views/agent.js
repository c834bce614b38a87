// One agent: what it is, where it came from, and what can be done with it.
import { actButton } from "../acts.js";
import { h } from "../dom.js";
import { count, number, setting } from "../text.js";

export function agentPanel(job, agent) {
  const rows = [
    ["Algorithm", agent.algorithm],
    ["State", stateText(agent)],
    ["Score", number(agent.score)],
    ["Began", agent.parents.length ? `${agent.start.toLowerCase()} of ${agent.parents.join(" and ")}` : "fresh"],
    ["Why", agent.reason || "–"],
    ["Steps", `${count(agent.env_steps)}, ${agent.rung} rounds`],
    ...brokenRow(agent),
    ...Object.entries(agent.hyperparameters).map(([name, value]) => [name, setting(value)]),
  ];
  return h(
    "section",
    { class: "panel", "aria-label": `Agent ${agent.name}` },
    h("div", { class: "title" }, h("h2", null, agent.name), h("div", { class: "acts" }, buttons(job, agent))),
    h(
      "dl",
      { class: "rows" },
      rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
    ),
  );
}

function brokenRow({ evaluated_episodes, broken_number_episodes, broken_code_episodes }) {
  const broken = broken_number_episodes + broken_code_episodes;
  if (!broken) return [];
  const kinds = `${broken_number_episodes} by numbers, ${broken_code_episodes} by exceptions or deaths`;
  return [["Broken episodes", `${broken} of ${evaluated_episodes}: ${kinds}`]];
}

function stateText({ state, failure, pinned, stopping }) {
  const notes = [pinned && "pinned", stopping && "stops after this round", failure].filter(Boolean).join(", ");
  return state.toLowerCase() + (notes && `: ${notes}`);
}

function buttons(job, agent) {
  const lives = !job.ended && ["TRAINING", "WAITING"].includes(agent.state) && !agent.stopping;
  return [
    agent.score != null && promoteButton(job, agent.name),
    !job.ended && agent.env_steps > 0 && forkButton(job, agent),
    lives && agent.pinned && simple(job, agent, "Unpin", "Others may take its place again."),
    lives && !agent.pinned && simple(job, agent, "Pin", "No other agent takes its place until it is unpinned."),
    lives && simple(job, agent, "Stop", "It is trained no more; its checkpoints and results stay.", true),
  ];
}

const simple = (job, { name }, word, text, destroys = false) =>
  actButton(
    word,
    word.toLowerCase(),
    () => ({ title: `${word} ${name}?`, text, confirm: word, destroys, asked: { job: job.name, agent: name } }),
    { id: `${word.toLowerCase()}-${name}`, "aria-label": `${word} ${name}` },
  );

const forkButton = (job, agent) =>
  actButton(
    "Fork",
    "fork",
    () => ({
      title: `Fork ${agent.name}`,
      text: "A new agent begins with its weights and these hyperparameters, and is trained next.",
      fields: agent.forkable.map((name) => ({
        name: `set-${name}`,
        label: name,
        value: JSON.stringify(agent.hyperparameters[name]),
        "data-changes": true,
      })),
      confirm: "Fork",
      asked: { job: job.name, agent: agent.name },
      done: (made) => made.agent && (location.hash = `#/jobs/${job.id}/lineage/${made.agent}`),
    }),
    { id: `fork-${agent.name}`, "aria-label": `Fork ${agent.name}` },
  );

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
