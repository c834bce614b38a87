// Learning curves on a canvas: a line for each agent, decimated to the pixels that there are, and the best so far.
import { color, h, list } from "../dom.js";
import { all, touches } from "../news.js";
import { count, duration, number } from "../text.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 16, 28, 46];
const AXES = { 1: "environment steps", 2: "time since the job was created" };
const REDRAW_MS = 150;

export function curves(root) {
  const axis = h(
    "select",
    { id: "axis", onchange: draw },
    Object.entries(AXES).map(([value, name]) => h("option", { value }, name)),
  );
  const choice = h("select", { id: "agent", onchange: draw });
  const canvas = h("canvas", { role: "img" });
  const summary = h("p", { class: "muted", id: "curves-summary" });
  const controls = h(
    "div",
    { class: "controls" },
    h("label", null, "Over ", axis),
    h("label", null, "Highlight ", choice),
  );
  root.replaceChildren(controls, canvas, summary);
  let news, known, timer;
  let drawnAt = 0;
  const series = new Map(); // agent: rows, by steps

  canvas.addEventListener("pointermove", (event) => {
    const agent = nearest(event.offsetX, event.offsetY);
    if (agent && choice.value !== agent) {
      choice.value = agent;
      draw();
    }
  });

  function read() {
    const { evaluations = [] } = news.logs;
    if (known === undefined || known < news.first.evaluations) {
      series.clear();
      known = news.first.evaluations ?? 0;
    }
    for (const row of evaluations.slice(known - (news.first.evaluations ?? 0))) {
      if (!series.has(row[0])) series.set(row[0], []);
      const rows = series.get(row[0]);
      rows.push(row);
      if (rows.length > 1 && rows.at(-2)[1] > row[1]) rows.sort((a, b) => a[1] - b[1]);
      known += 1;
    }
  }

  function draw() {
    clearTimeout(timer);
    timer = undefined;
    drawnAt = performance.now();
    canvas.hidden = !series.size;
    if (!canvas.isConnected || !news.values.job) return;
    const { job, board } = news.values;
    const scored = all(news, "agent").filter(({ score }) => score != null);
    const best = board?.candidates[0]?.agent ?? scored.sort((a, b) => b.score - a.score)[0]?.name;
    if (!series.size) return void (summary.textContent = "No evaluation yet.");
    const shown = series.get(choice.value || best);
    const plot = layout(canvas, series, shown ?? [], Number(axis.value), job.objective.target);
    drawAxes(plot, Number(axis.value), job);
    for (const rows of series.values()) if (rows !== shown) drawLine(plot, rows, "series-1", 0.5, 1);
    drawBest(plot, series);
    if (shown) {
      drawBand(plot, shown);
      drawLine(plot, shown, "series-2", 1, 2);
    }
    const last = shown?.at(-1);
    summary.textContent = last
      ? `${series.size} agents. Orange: ${last[0]}, ${job.score_name} ${number(last[3])} (95 % interval ${number(last[4])} to ${number(last[5])}) after ${count(last[1])} steps. Stepped: the highest mean so far.`
      : "Stepped: the highest mean so far.";
    canvas.setAttribute("aria-label", `Learning curves. ${summary.textContent}`);
    canvas.plot = plot;
  }

  function nearest(x, y) {
    let [found, distance] = ["", 400];
    const { plot } = canvas;
    if (!plot) return found;
    for (const [agent, rows] of series) {
      for (const row of decimated(plot, rows)) {
        const d = (plot.x(row) - x) ** 2 + (plot.y(row[3]) - y) ** 2;
        if (d < distance) [found, distance] = [agent, d];
      }
    }
    return found;
  }

  return (current, changed, { agent }) => {
    news = current;
    if (changed.has("all")) known = undefined;
    if (!touches(changed, "evaluations", "board", "job")) return;
    read();
    if (touches(changed, "board")) {
      const options = [
        ["", "the best"],
        ...all(news, "agent").map(({ name, algorithm }) => [name, `${name} (${algorithm})`]),
      ];
      const chosen = choice.value;
      list(
        choice,
        options,
        ([name]) => name,
        ([value, text]) => h("option", { value }, text),
      );
      choice.value = changed.has("route") && agent ? agent : chosen;
    }
    timer ??= setTimeout(draw, Math.max(0, drawnAt + REDRAW_MS - performance.now()));
  };
}

function layout(canvas, series, shown, column, target) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const ratio = devicePixelRatio;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  let [right, low, high] = [0, target ?? Infinity, target ?? -Infinity];
  for (const rows of series.values()) {
    for (const row of rows) {
      if (row[column] > right) right = row[column];
      if (row[3] < low) low = row[3];
      if (row[3] > high) high = row[3];
    }
  }
  for (const [, , , , lower, upper] of shown)
    [low, high] = [Math.min(low, lower ?? low), Math.max(high, upper ?? high)];
  const margin = 0.05 * (high - low) || 1;
  [low, high, right] = [low - margin, high + margin, 1.03 * right || 1];
  const x = (row) => LEFT + (row[column] / right) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - ((value - low) / (high - low)) * (height - TOP - BOTTOM);
  return { context, width, height, low, high, right, x, y, target };
}

/** Of the rows that share a pixel column the first, the last, the lowest and the highest. */
function* decimated({ x }, rows) {
  let begin = 0;
  while (begin < rows.length) {
    const column = Math.floor(x(rows[begin]));
    let [end, low, high] = [begin, begin, begin];
    for (; end < rows.length && Math.floor(x(rows[end])) === column; end += 1) {
      if (rows[end][3] < rows[low][3]) low = end;
      if (rows[end][3] > rows[high][3]) high = end;
    }
    for (const place of [...new Set([begin, low, high, end - 1])].sort((a, b) => a - b)) yield rows[place];
    begin = end;
  }
}

function drawLine(plot, rows, name, alpha, width) {
  const { context, x, y } = plot;
  Object.assign(context, { strokeStyle: color(name), fillStyle: color(name), globalAlpha: alpha, lineWidth: width });
  context.beginPath();
  for (const row of decimated(plot, rows)) context.lineTo(x(row), y(row[3]));
  context.stroke();
  const last = rows.at(-1);
  context.fillRect(x(last) - 2, y(last[3]) - 2, 4, 4); // one evaluation is no line
  context.globalAlpha = 1;
}

function drawBand({ context, x, y }, rows) {
  const bounded = rows.filter((row) => row[4] != null && row[5] != null);
  Object.assign(context, { fillStyle: color("series-2"), globalAlpha: 0.2 });
  context.beginPath();
  for (const row of bounded) context.lineTo(x(row), y(row[5]));
  for (const row of bounded.reverse()) context.lineTo(x(row), y(row[4]));
  context.fill();
  context.globalAlpha = 1;
}

function drawBest({ context, width, x, y }, series) {
  const best = new Float64Array(Math.ceil(width) + 1).fill(-Infinity);
  for (const rows of series.values()) {
    for (const row of rows) best[Math.floor(x(row))] = Math.max(best[Math.floor(x(row))], row[3]);
  }
  Object.assign(context, { strokeStyle: color("ink"), lineWidth: 1.5 });
  context.beginPath();
  let highest = -Infinity;
  best.forEach((value, column) => {
    if (value <= highest) return;
    if (highest > -Infinity) context.lineTo(column, y(highest));
    context.lineTo(column, y((highest = value)));
  });
  if (highest > -Infinity) context.lineTo(width - RIGHT, y(highest));
  context.stroke();
}

function drawAxes({ context, width, height, low, high, right, x, y, target }, column, job) {
  Object.assign(context, {
    font: "12px system-ui, sans-serif",
    fillStyle: color("muted"),
    strokeStyle: color("grid"),
    lineWidth: 1,
  });
  Object.assign(context, { textAlign: "left", textBaseline: "top" });
  context.fillText(job.score_name, 0, 2);
  Object.assign(context, { textAlign: "right", textBaseline: "bottom" });
  context.fillText(AXES[column], width - RIGHT, height - 2);
  context.textBaseline = "middle";
  for (const value of ticks(low, high)) {
    line(context, LEFT, y(value), width - RIGHT, y(value));
    context.fillText(number(value), LEFT - 6, y(value));
  }
  Object.assign(context, { textAlign: "center", textBaseline: "top" });
  for (const value of ticks(0, right, width / 150)) {
    const place = x(Array(3).fill(value));
    context.fillText(column === 1 ? count(value) : duration(value), Math.min(place, width - 30), height - BOTTOM + 8);
  }
  if (target != null) {
    context.setLineDash([6, 4]);
    context.strokeStyle = color("series-3");
    line(context, LEFT, y(target), width - RIGHT, y(target));
    context.setLineDash([]);
    Object.assign(context, { textAlign: "left", textBaseline: "bottom", fillStyle: color("series-3") });
    context.fillText(`target ${number(target)}`, LEFT + 4, y(target) - 2);
  }
}

function line(context, ...[x, y, toX, toY]) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, toY);
  context.stroke();
}

export function ticks(low, high, wanted = 5) {
  const rough = (high - low) / wanted;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * ([1, 2, 5].find((each) => each * size >= rough) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high; value += step) found.push(value);
  return found;
}
