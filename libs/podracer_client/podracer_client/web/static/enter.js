// Exchanges the key for the cookie: that in the URL's fragment, which browsers never send by themselves, or a typed one.
// The fragment may say where to go then: `#key=…&to=/jobs/ID/VIEW`.
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(document.getElementById("key").value.trim());
});
const fragment = new URLSearchParams(location.hash.slice(1));
if (fragment.has("key")) {
  history.replaceState(null, "", `/#${fragment.get("to") ?? ""}`);
  enter(fragment.get("key"));
}

async function enter(key) {
  const headers = { authorization: `Bearer ${key}`, "x-podracer-web": "1" };
  const answer = await fetch("/api/session", { method: "POST", headers });
  if (answer.ok) location.reload();
  else document.getElementById("say").textContent = (await answer.json()).message;
}
