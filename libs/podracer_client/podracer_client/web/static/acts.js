// What the page can do: each act is asked for in a dialog, sent with a header that no other site can send, and told.
import { h } from "./dom.js";

/** A button that opens the act's dialog. `build` gives its title, text, fields, and what its button says. A field with
 * `data-changes` is sent only where its value was changed. */
export function actButton(label, act, build, attributes = {}) {
  return h("button", { type: "button", ...attributes, onclick: () => ask(act, build()) }, label);
}

function ask(act, { title, text, fields = [], confirm, asked = {}, destroys = false, done }) {
  const inputs = fields.map(({ name, label, kind = "input", ...attributes }) => {
    const input = h(kind, { name, id: `ask-${name}`, ...attributes });
    if (kind === "textarea") input.value = attributes.value ?? "";
    return [name, input, h("label", { for: input.id }, label)];
  });
  const problem = h("pre", { role: "alert", class: "problem", hidden: true });
  const send = h("button", { type: "submit", class: destroys ? "destroys" : "main" }, confirm);
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "ask-title" }, title),
    text && h("p", null, text),
    inputs.map(([, input, label]) => h("div", { class: "field" }, label, input)),
    problem,
    h("div", { class: "acts" }, h("button", { type: "button", onclick: () => dialog.close() }, "Leave it"), send),
  );
  const dialog = h("dialog", { "aria-labelledby": "ask-title", onclose: () => dialog.remove() }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    const told = inputs.filter(([, input]) => !("changes" in input.dataset) || input.value !== input.defaultValue);
    const given = Object.fromEntries(told.map(([name, input]) => [name, valueOf(input)]));
    const [answer, found] = await post(act, { ...asked, ...given });
    send.disabled = false;
    if (answer) {
      dialog.close();
      done?.(found);
    } else {
      problem.hidden = false;
      problem.textContent = [found.message, ...found.lines.map((line) => `  ${line}`)].join("\n");
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}

function valueOf(input) {
  if (input.type !== "number") return input.value;
  return input.value === "" ? null : Number(input.value);
}

export async function post(act, asked) {
  try {
    const headers = { "content-type": "application/json", "x-podracer-web": "1" };
    const answer = await fetch(`/api/acts/${act}`, { method: "POST", headers, body: JSON.stringify(asked) });
    return [answer.ok, await answer.json()];
  } catch {
    return [false, { message: "the page's own server does not answer", lines: [] }];
  }
}
