// Elements are made here, and only here: what comes from a cluster becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with properties and children; texts among the children stay texts. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function s(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "vars") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...kept(children));
  return element;
}

const kept = (children) => children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);

/** Puts other children in an element. */
export function put(element, ...children) {
  element.replaceChildren(...kept(children));
  return element;
}

/** What is shown where there is nothing. */
export function empty(title, ...more) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), more.map((each) => h("p", {}, each)));
}

/** An error as a sentence. */
export function failed(error) {
  return h("div", { class: "note bad", role: "alert" }, error.message || String(error));
}

/** Numbers with a name: rows are [name, value, more, kind, exact value]. */
export function tiles(rows) {
  return rows.filter(Boolean).map(([name, value, more, kind, exact]) => h("div", { class: `tile ${kind || ""}`, title: exact }, h("span", {}, name), h("b", {}, value), h("small", {}, more)));
}

/** Whether a button of the mouse is down on the page: a click needs its element until it is released. */
export const pressed = () => document.querySelector("#page :active");

/** Draws, and gives the focus to the element that is made anew for the one that had it. */
export function refocused(draw) {
  const all = () => [...document.querySelectorAll("a, button, summary")];
  const [before, place] = [document.activeElement, all().indexOf(document.activeElement)];
  draw();
  if (place < 0 || before.isConnected) return;
  const same = (each) => each?.textContent === before.textContent;
  (same(all()[place]) ? all()[place] : all().find(same))?.focus({ preventScroll: true });
}

/** A function that asks, one request at a time, and draws the answer, or in `place` the error. */
export function poll(place, load, draw) {
  let [asking, again] = [false, false];
  return async function ask() {
    again = asking;
    if (asking) return;
    asking = true;
    try {
      const found = await load();
      if (place.isConnected && !pressed()) refocused(() => draw(found));
    } catch (error) {
      put(place, failed(error));
    }
    asking = false;
    if (again) ask();
  };
}

/** The address of a page; names are parts of its path. */
export const link = (path, ...names) => `#/${[path, ...names.map(encodeURIComponent)].join("/")}`;

/** A small coloured word. */
export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** A plain table: columns are [title, class], cells are texts or elements. */
export function table(columns, rows, label) {
  return h("div", { class: "scroll-x" }, h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { class: kind || "", scope: "col" }, title)))),
    h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell, n) => h("td", { class: columns[n][1] || "" }, cell)))))));
}
