// The pods of a job, and what the pool has and uses.
import { h, list, row, table } from "../dom.js";
import { touches } from "../news.js";
import { bytes, count } from "../text.js";

const TITLES = ["Pod", "State", "Layout", "Agents", "Steps a second", "Memory", "Restarts", "Message"];

export function pods(root) {
  const [element, body] = table("Pods of the job", TITLES);
  const [none, capacity] = [h("p", { class: "muted" }, "No pod works for it now."), pool()];
  root.replaceChildren(none, element, capacity);
  return (news, changed) => {
    if (touches(changed, "pods")) {
      const found = news.values.pods ?? [];
      none.hidden = found.length > 0;
      element.hidden = !found.length;
      list(
        body,
        found,
        ({ name }) => name,
        (pod) =>
          row(
            pod.name,
            h("span", { class: `state ${pod.state}` }, pod.state),
            pod.layout,
            pod.agents.join(" "),
            count(pod.env_steps_per_second),
            bytes(pod.memory_bytes),
            String(pod.restarts),
            pod.message,
          ),
      );
    }
    if (touches(changed, "capacity")) showPool(capacity, news.values.capacity);
  };
}

export const pool = () => h("section", { "aria-label": "Pool", class: "pool" });

const RESOURCES = [
  ["Cores", "cores", (value) => value.toFixed(1)],
  ["Memory", "memory_bytes", bytes],
  ["GPUs", "gpus", String],
];

export function showPool(section, capacity) {
  if (!capacity) return;
  const { backend, pods: number, free_pods: free, limit, total } = capacity;
  const room = free == null ? "" : `, room for ${free} more`;
  section.replaceChildren(
    h("h2", null, `Pool: ${backend}, ${number} ${number === 1 ? "pod" : "pods"}${room}`),
    ...RESOURCES.filter(([, key]) => total?.[key]).map((resource) => meter(capacity, ...resource)),
    h("p", { class: "muted" }, limit ? `Limit: ${limit}` : "Every job has the pods that it asks for."),
  );
}

function meter({ total, reserved, used }, name, key, text) {
  const promised = reserved?.[key] ?? 0;
  const told = `${text(promised)} of ${text(total[key])} promised${used ? `, ${text(used[key])} in use` : ""}`;
  const bar = h("meter", { max: total[key], value: promised, "aria-label": `${name}: ${told}` });
  return h("div", { class: "meter" }, h("span", null, name), bar, h("span", null, told));
}
