// Hyperparameters as parallel coordinates: an axis for each that differs, the score last; a line for each agent.
import { h, list, row, svg, table } from "../dom.js";
import { all, touches } from "../news.js";
import { number, setting } from "../text.js";

const [TOP, HEIGHT, SIDE] = [46, 300, 56];
const [LEAST_GAP, MOST_GAP] = [130, 260];

export function hyperparameters(root) {
  const redraw = () => draw();
  const [algorithm, choice] = [h("select", { onchange: redraw }), h("select", { onchange: redraw })];
  const [figure, values] = [
    h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Parallel coordinates" }),
    h("div"),
  ];
  const controls = h(
    "div",
    { class: "controls" },
    h("label", null, "Algorithm ", algorithm),
    h("label", null, "Highlight ", choice),
  );
  root.replaceChildren(controls, figure, h("details", null, h("summary", null, "As a table"), values));
  let news;

  function draw() {
    const every = all(news, "agent");
    options(
      algorithm,
      [...new Set(every.map((agent) => agent.algorithm))].map((name) => [name, name]),
    );
    const agents = every
      .filter((agent) => agent.algorithm === algorithm.value)
      .sort((a, b) => (a.score ?? -Infinity) - (b.score ?? -Infinity));
    options(choice, [["", "the best"], ...agents.map(({ name }) => [name, name])]);
    const names = [...new Set(agents.flatMap((agent) => Object.keys(agent.hyperparameters)))].filter(
      (name) => new Set(agents.map((agent) => JSON.stringify(agent.hyperparameters[name]))).size > 1,
    );
    const axes = [...names, "score"].map((name) =>
      axis(
        name,
        agents.map((agent) => valueOf(agent, name)),
      ),
    );
    const first = agents.find(({ name }) => name === news.values.board?.candidates[0]?.agent);
    const chosen = choice.value || (first ?? agents.findLast(({ score }) => score != null))?.name;
    figure.replaceChildren(
      agents.length ? drawAxes(axes, agents, chosen, figure.clientWidth) : h("p", { class: "muted" }, "No agent yet."),
    );
    const [element, body] = table("Hyperparameters that differ", ["Agent", ...names, "Score"]);
    for (const agent of agents.toReversed())
      body.append(row(agent.name, ...names.map((name) => setting(agent.hyperparameters[name])), number(agent.score)));
    values.replaceChildren(element);
  }

  return (current, changed) => {
    news = current;
    if (touches(changed, "agent")) draw();
  };
}

const valueOf = (agent, name) => (name === "score" ? agent.score : agent.hyperparameters[name]);

function options(select, pairs) {
  const chosen = select.value;
  list(
    select,
    pairs,
    ([value]) => value,
    ([value, text]) => h("option", { value }, text),
  );
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
}

/** A place from 0 to 1 for each value: its logarithm's where values span a factor of 30, their order's for words. */
function axis(name, values) {
  const known = values.filter((value) => value != null);
  if (known.every((value) => typeof value === "number")) {
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const scale = low > 0 && high / low > 30 ? Math.log : (value) => value;
    const place = (value) => (high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5);
    return { name, place, marks: [...new Set(known.length ? [low, high] : [])] };
  }
  const words = [...new Set(known.map(setting))].sort();
  const place = (value) => (words.length > 1 ? words.indexOf(setting(value)) / (words.length - 1) : 0.5);
  return { name, place, marks: words };
}

function drawAxes(axes, agents, chosen, room) {
  const gap = Math.min(MOST_GAP, Math.max(LEAST_GAP, (room - 2 * SIDE) / Math.max(1, axes.length - 1)));
  const width = 2 * SIDE + gap * (axes.length - 1);
  const y = (axis, value) => TOP + HEIGHT * (1 - axis.place(value));
  const lines = agents.map((agent, rank) => {
    const points = axes
      .map((axis, place) => [SIDE + place * gap, valueOf(agent, axis.name), axis])
      .filter(([, value]) => value != null);
    const isChosen = agent.name === chosen;
    const path = svg("polyline", {
      points: points.map(([x, value, axis]) => `${x},${y(axis, value)}`).join(" "),
      class: isChosen ? "chosen line" : "line",
      "stroke-opacity": isChosen ? 1 : 0.15 + (0.6 * rank) / agents.length,
    });
    path.append(svg("title", null, `${agent.name}: ${number(agent.score)}`));
    return [isChosen, path];
  });
  const scales = axes.map((axis, place) => {
    const x = SIDE + place * gap;
    return [
      svg("line", { x1: x, x2: x, y1: TOP, y2: TOP + HEIGHT, stroke: "var(--muted)" }),
      svg("text", { x: place && x, y: place % 2 ? 14 : 30, "text-anchor": place ? "middle" : "start" }, axis.name),
      axis.marks.map((mark) =>
        svg(
          "text",
          { x: x + 5, y: y(axis, mark) + 4, class: "muted" },
          axis.name === "score" ? number(mark) : setting(mark),
        ),
      ),
    ];
  });
  const label = `Hyperparameters of ${agents.length} agents; ${chosen ?? "none"} is highlighted. The table below has the numbers.`;
  const ordered = lines.sort(([a], [b]) => a - b).map(([, path]) => path);
  return svg("svg", { width, height: TOP + HEIGHT + 16, role: "img", "aria-label": label }, ordered, scales);
}
