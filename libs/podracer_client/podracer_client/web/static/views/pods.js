// The pods of a job, and what the pool has and uses.
import { h, list, row, table } from "../dom.js";
import { touches } from "../news.js";
import { bytes, count } from "../text.js";

export function pods(root) {
  const [element, body] = table("Pods", ["Pod", "State", "Layout", "Agents", "Steps a second", "Memory", "Restarts", "Message"]);
  const [none, capacity] = [h("p", { class: "muted" }, "No pod works for it now."), pool()];
  root.replaceChildren(none, element, capacity);
  return (news, changed) => {
    if (touches(changed, "pods")) {
      const found = news.values.pods ?? [];
      none.hidden = found.length > 0;
      element.hidden = !found.length;
      list(body, found, ({ name }) => name, (pod) =>
        row(pod.name, h("span", { class: `state ${pod.state}` }, pod.state), pod.layout, pod.agents.join(" "), count(pod.env_steps_per_second), bytes(pod.memory_bytes), String(pod.restarts), pod.message));
    }
    if (touches(changed, "capacity")) showPool(capacity, news.values.capacity);
  };
}

export const pool = () => h("section", { "aria-label": "Pool", class: "pool" });

export function showPool(section, capacity) {
  if (!capacity) return;
  const { total, reserved, used } = capacity;
  const free = capacity.free_pods == null ? "" : `, room for ${capacity.free_pods} more`;
  const meters = total ? [["Cores", "cores", (value) => value.toFixed(1)], ["Memory", "memory_bytes", bytes], ["GPUs", "gpus", String]] : [];
  list(section, [["head"], ...meters.filter(([, key]) => total[key]).map(([name, key]) => [name, total[key], reserved?.[key] ?? 0, used?.[key]]), ["foot"]].map((each) => [...each, ...(["head", "foot"].includes(each[0]) ? [capacity.backend, capacity.pods, free, capacity.limit] : [])]), ([name]) => name, ([name, ...figures]) => {
    if (name === "head") return h("h2", null, `Pool: ${figures[0]}, ${figures[1]} ${figures[1] === 1 ? "pod" : "pods"}${figures[2]}`);
    if (name === "foot") return h("p", { class: "muted" }, figures[3] ? `Limit: ${figures[3]}` : "Every job has the pods that it asks for.");
    const text = meters.find(([title]) => title === name)[2];
    const [all, promised, inUse] = figures;
    const told = `${text(promised)} of ${text(all)} promised${inUse == null ? "" : `, ${text(inUse)} in use`}`;
    return h("div", { class: "meter" }, h("span", null, name), h("meter", { min: 0, max: all, value: promised, "aria-label": `${name}: ${told}` }), h("span", null, told));
  });
}
