// Exchanges the key for the cookie: that in the URL's fragment, which browsers never send by themselves, or a typed one.
document.querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  enter(document.getElementById("key").value.trim());
});
const given = new URLSearchParams(location.hash.slice(1)).get("key");
if (given) {
  history.replaceState(null, "", "/");
  enter(given);
}

async function enter(key) {
  const headers = { authorization: `Bearer ${key}`, "x-podracer-web": "1" };
  const answer = await fetch("/api/session", { method: "POST", headers });
  if (answer.ok) location.reload();
  else document.getElementById("say").textContent = (await answer.json()).message;
}
