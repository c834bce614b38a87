// Elements without a framework. Text is always set as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("p", {class: "muted", onclick}, "text", child)`. Attributes that are false or null are left out. */
export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
export const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** Children of `parent` for `items`; one whose item is as before stays, and with it the focus. */
export function list(parent, items, key, build) {
  const known = (parent.built ??= new Map());
  const next = new Map();
  const focus = document.activeElement?.id;
  for (const item of items) {
    const text = JSON.stringify(item);
    const former = known.get(key(item));
    next.set(key(item), former?.text === text ? former : { text, node: build(item) });
  }
  const nodes = [...next.values()].map(({ node }) => node);
  if (nodes.length !== parent.childNodes.length || nodes.some((node, place) => parent.childNodes[place] !== node)) {
    parent.replaceChildren(...nodes);
    if (focus && document.activeElement?.id !== focus) document.getElementById(focus)?.focus();
  }
  parent.built = next;
}

/** A table that scrolls by itself; returns the element and its body. */
export function table(caption, titles) {
  const body = h("tbody");
  const head = h(
    "tr",
    null,
    titles.map((title) => h("th", { scope: "col" }, title)),
  );
  const inside = h("table", null, h("caption", null, caption), h("thead", null, head), body);
  return [h("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption }, inside), body];
}

export const row = (...cells) =>
  h(
    "tr",
    null,
    cells.map((cell) => h("td", null, cell ?? "–")),
  );
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
