// The population as a tree: a bar for each agent from the steps it began with to those it has, below its parent.
import { h, svg } from "../dom.js";
import { all, touches } from "../news.js";
import { count, number } from "../text.js";
import { agentPanel, algorithmColors, legend } from "./agent.js";
import { ticks } from "./curves.js";

const [ROW, LEFT, RIGHT, TOP] = [20, 12, 150, 26];

export function lineage(root) {
  const [panel, tree] = [h("div"), h("div", { class: "wide" })];
  root.replaceChildren(tree, panel);
  let text = "";
  return (news, changed, { id, agent: chosen }) => {
    if (!touches(changed, "agent", "board", "job") || !news.values.job) return;
    const agents = treeOrder(all(news, "agent"));
    const best = news.values.board?.candidates[0]?.agent;
    const next = JSON.stringify([agents, best, chosen, tree.clientWidth]);
    if (text === next) return;
    text = next;
    const focus = document.activeElement?.id;
    const colors = algorithmColors(agents);
    tree.replaceChildren(
      agents.length ? legend(colors) : h("p", { class: "muted" }, "No agent yet."),
      drawTree(agents, { id, best, chosen, colors, width: Math.max(320, tree.clientWidth) }),
    );
    const found = agents.find(({ name }) => name === chosen);
    panel.replaceChildren(
      found
        ? agentPanel(news.values.job, found)
        : h("p", { class: "muted" }, "Choose an agent to see what it was trained with."),
    );
    if (focus) document.getElementById(focus)?.focus();
  };
}

/** Each agent before its children, by the first of its parents. */
function treeOrder(agents) {
  const children = Map.groupBy(agents, ({ parents }) => parents[0] ?? "");
  const names = new Set(agents.map(({ name }) => name));
  const found = [];
  const stack = agents.filter(({ parents }) => !names.has(parents[0])).reverse();
  while (stack.length) {
    const agent = stack.pop();
    found.push(agent);
    stack.push(...(children.get(agent.name) ?? []).reverse());
  }
  return found;
}

function drawTree(agents, { id, best, chosen, colors, width }) {
  const most = Math.max(1_000, ...agents.map(({ env_steps }) => env_steps));
  const x = (steps) => LEFT + (steps / most) * (width - LEFT - RIGHT);
  const places = new Map(agents.map(({ name }, place) => [name, TOP + place * ROW + ROW / 2]));
  const height = TOP + agents.length * ROW + 6;
  const grid = ticks(0, most, width / 150).map((value) => [
    svg("line", { x1: x(value), x2: x(value), y1: TOP, y2: height, stroke: "var(--grid)" }),
    svg(
      "text",
      { x: x(value), y: 14, "text-anchor": value ? "middle" : "start", class: "muted" },
      value ? count(value) : "0 steps",
    ),
  ]);
  const links = agents.flatMap(({ name, parents, start_steps }) =>
    parents
      .filter((parent) => places.has(parent))
      .map((parent) =>
        svg("path", { d: `M${x(start_steps)},${places.get(parent)}V${places.get(name)}`, class: "branch" }),
      ),
  );
  const bars = agents.map((agent) => {
    const y = places.get(agent.name);
    const label = `${agent.name}${agent.name === best ? " ★" : ""} ${number(agent.score)}`;
    const described = `${label}, ${agent.algorithm}, ${agent.state.toLowerCase()}`;
    return svg(
      "a",
      {
        href: `#/jobs/${id}/lineage/${agent.name}`,
        id: `agent-${agent.name}`,
        "aria-label": described,
        class: `${agent.state} ${agent.name === chosen ? "chosen" : ""}`,
        "aria-current": agent.name === chosen && "true",
      },
      svg("rect", {
        x: x(agent.start_steps),
        y: y - 4,
        width: Math.max(3, x(agent.env_steps) - x(agent.start_steps)),
        height: 8,
        rx: 2,
        fill: colors[agent.algorithm],
      }),
      svg("text", { x: x(agent.env_steps) + 8, y: y + 4 }, label),
    );
  });
  return svg(
    "svg",
    {
      width,
      height,
      role: "group",
      "aria-label": `Lineage of ${agents.length} agents over environment steps`,
      class: "tree",
    },
    grid,
    links,
    bars,
  );
}
