// All jobs, newest first, and the pool.
import { actButton } from "../acts.js";
import { h, list, row, table } from "../dom.js";
import { all, touches } from "../news.js";
import { count, number, time, words } from "../text.js";
import { pool, showPool } from "./pods.js";

const EXAMPLE = "name: cartpole\nenvironment: CartPole-v1\nobjective: {target_return: 475, max_duration: 5m}\n";

export function jobs(root) {
  const submit = actButton("Submit a job", "submit", submission, { class: "main" });
  const titles = ["Job", "State", "Environment", "Best", "Target", "Steps", "Agents", "Pods", "Created"];
  const [element, body] = table("Jobs", titles);
  const none = h("p", { class: "muted" }, "No job yet.");
  const capacity = pool();
  root.replaceChildren(h("div", { class: "title" }, h("h1", null, "Jobs"), submit), none, element, capacity);
  return (news, changed) => {
    if (touches(changed, "job")) {
      const found = all(news, "job").sort((a, b) => b.create_time.localeCompare(a.create_time));
      none.hidden = found.length > 0;
      element.hidden = !found.length;
      list(body, found, (job) => job.name, jobRow);
    }
    if (touches(changed, "capacity")) showPool(capacity, news.values.capacity);
  };
}

const jobRow = (job) =>
  row(
    h("a", { href: `#/jobs/${job.id}`, id: `job-${job.id}` }, job.id),
    h("span", { class: `state ${job.result}` }, words(job.result)),
    job.environment,
    number(job.best_score),
    number(job.target_return),
    count(job.live_env_steps),
    String(job.agents),
    String(job.pods),
    time(job.create_time),
  );

const submission = () => ({
  title: "Submit a job",
  text: "A job file, also one with a matrix. One that names files on a disk is submitted by podracer submit.",
  fields: [{ name: "text", label: "Job file", kind: "textarea", rows: 14, spellcheck: "false", value: EXAMPLE }],
  confirm: "Submit",
  done: ({ jobs: [first, ...more] }) => (location.hash = more.length ? "#/" : `#/jobs/${first}`),
});
