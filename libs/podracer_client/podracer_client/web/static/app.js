// Routes `#/` and `#/jobs/ID/VIEW/AGENT` to a view, and feeds it with news, at most once a drawn frame.
import { follow } from "./news.js";
import { jobs } from "./views/jobs.js";
import { job } from "./views/job.js";

const main = document.getElementById("main");
const connection = document.getElementById("connection");
let current = { place: null, news: null, view: null };
let changed = new Set();
let isDue = false;

function route() {
  const [, kind, id = "", view = "curves", agent = ""] = location.hash.split("/").map(decodeURIComponent);
  const place = kind === "jobs" && id ? id : "";
  if (current.place !== place) {
    current.news?.close();
    current = { place, news: follow(place, hear), view: (place ? job : jobs)(main) };
    document.title = place ? `${place} – Podracer` : "Podracer";
  }
  current.route = { id: place, view, agent };
  hear(["route"]);
}

function hear(keys) {
  for (const key of keys) changed.add(key.split("/")[0]);
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    const news = changed;
    changed = new Set();
    current.view(current.news, news, current.route);
    showConnection(current.news.values.connection);
  });
}

function showConnection({ state, message } = { state: "connecting", message: "" }) {
  if (connection.textContent === state) return;
  Object.assign(connection, { textContent: state, className: state, title: message });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  hear(["theme"]);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the route
  main.focus();
});
addEventListener("hashchange", route);
addEventListener("resize", () => hear(["theme"]));
route();
