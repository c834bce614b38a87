// What happened, the newest first.
import { h, list, row, table } from "../dom.js";
import { touches } from "../news.js";
import { duration } from "../text.js";

const SHOWN = 200;

export function events(root) {
  const words = h("input", { type: "search", id: "words", oninput: () => draw() });
  const [element, body] = table("Events, the newest first", ["Time", "Kind", "About", "What happened"]);
  const hint = h("p", { class: "muted" });
  root.replaceChildren(h("div", { class: "controls" }, h("label", null, "Only with the words ", words)), element, hint);
  let news;

  function draw() {
    const wanted = words.value.toLowerCase().split(/\s+/);
    const found = (news.logs.events ?? []).filter((event) =>
      wanted.every((word) => event.join(" ").toLowerCase().includes(word)),
    );
    list(
      body,
      found.slice(-SHOWN).reverse(),
      ([position]) => position,
      ([, at, kind, subject, message, text]) => {
        const detail = text && h("details", null, h("summary", null, "Traceback and output"), h("pre", null, text));
        return row(duration(at), h("code", null, kind), subject, [message, detail]);
      },
    );
  }

  return (current, changed, { id }) => {
    news = current;
    if (touches(changed, "events")) draw();
    hint.replaceChildren(
      "Where the time went: ",
      h("code", null, `podracer trace ${id}`),
      " on the machine that trains.",
    );
  };
}
