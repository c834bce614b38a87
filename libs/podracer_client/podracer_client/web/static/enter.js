// Exchanges the key in the URL's fragment, which browsers never send by themselves, for the cookie.
const key = new URLSearchParams(location.hash.slice(1)).get("key");
if (key) {
  history.replaceState(null, "", "/");
  const headers = { authorization: `Bearer ${key}`, "x-podracer-web": "1" };
  const answer = await fetch("/api/session", { method: "POST", headers });
  if (answer.ok) location.reload();
  else document.getElementById("say").textContent = (await answer.json()).message;
}
