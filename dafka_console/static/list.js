// A list of any length: only the rows that can be seen are asked for, and made.

import { empty, failed, h, pressed, put } from "./dom.js";

const MARGIN = 12;

/**
 * columns: [{key, title, kind, width, exact, cell(row)}]; those with a key can be sorted by, and
 * `exact` writes it whole, as it is shown when pointed at.
 * more(total): what follows the number of rows.
 * load({start, most, sort, down}): a promise of {total, rows}.
 */
export function list({ columns, load, open, label, sort = "name", down = false, nothing, more }) {
  const state = { sort, down, total: null, rows: new Map(), chosen: -1, asking: null };
  const head = h("div", { class: "list-head", role: "row" });
  const body = h("div", { class: "list-body", role: "rowgroup" });
  const scroller = h("div", { class: "list-scroll", tabindex: "0", role: "presentation" }, body);
  const foot = h("div", { class: "list-foot", "aria-live": "off" });
  const widths = { "--columns": columns.map((each) => each.width || "1fr").join(" "),
    "--narrow": columns.filter((each) => !(each.kind || "").includes("wide")).map((each) => each.width || "1fr").join(" ") };
  const element = h("div", { class: "list", role: "table", "aria-label": label, vars: widths }, head, scroller, foot);

  const rowHeight = () => parseFloat(getComputedStyle(element).getPropertyValue("--row")) || 36;
  const visible = () => Math.ceil((parseFloat(getComputedStyle(scroller).maxHeight) || 600) / rowHeight());
  const first = () => Math.floor(scroller.scrollTop / rowHeight());

  function heads() {
    put(head, columns.map((each) => {
      const is = each.key && state.sort === each.key;
      const order = is ? (state.down ? "descending" : "ascending") : undefined;
      const arrow = is ? (state.down ? " ↓" : " ↑") : "";
      return h("div", { class: `cell ${each.kind || ""}`, role: "columnheader", "aria-sort": order },
        each.key ? h("button", { class: "sort", onclick: () => by(each.key) }, each.title, arrow) : each.title);
    }));
  }

  function by(key) {
    if (state.sort === key) state.down = !state.down;
    else Object.assign(state, { sort: key, down: key !== "name" });
    heads();
    again();
  }

  /** Asks anew for everything, from the top: something else is looked for. */
  function again() {
    state.rows.clear();
    state.chosen = -1;
    scroller.scrollTop = 0;
    return refresh();
  }

  /** Asks for what can be seen. */
  async function refresh() {
    state.asking?.abort();
    const asking = new AbortController();
    state.asking = asking;
    const start = Math.max(0, first() - MARGIN);
    const most = visible() + 2 * MARGIN;
    try {
      const found = await load({ start, most, sort: state.sort, down: state.down ? 1 : 0 }, asking.signal);
      if (asking.signal.aborted || pressed()) return;
      state.total = found.total;
      state.live = found.live;
      state.rows = new Map(found.rows.map((row, n) => [start + n, row]));
      if (start && start >= found.total) scroller.scrollTop = 0;
      draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      if (state.rows.size) foot.textContent = error.message;
      else put(body, failed(error));
    } finally {
      if (state.asking === asking) state.asking = null;
    }
  }

  function draw() {
    const height = rowHeight();
    body.style.height = `${Math.max(state.total * height, 1)}px`;
    if (!state.total) {
      body.style.height = "auto";
      put(body, nothing(state.live));
    } else {
      put(body, [...state.rows].map(([number, row]) => {
        const made = h("div", { class: row.stale && row.stale === (row.partitions ?? true) ? "list-row stale" : "list-row", role: "row", "aria-rowindex": number + 1, "data-row": number },
          columns.map((each) => h("div", { class: `cell ${each.kind || ""}`, role: "cell", title: each.exact?.(row[each.key]) }, each.cell(row))));
        made.style.transform = `translateY(${number * height}px)`;
        made.classList.toggle("chosen", number === state.chosen);
        if (open) made.addEventListener("click", (event) => event.target.closest("a") || open(row));
        return made;
      }));
    }
    foot.textContent = `${(state.total || 0).toLocaleString("en-US")} ${label}${more?.(state.total) || ""}`;
    element.dataset.total = state.total;
  }

  function move(step) {
    if (!state.total) return;
    state.chosen = Math.min(Math.max(state.chosen + step, 0), state.total - 1);
    const top = state.chosen * rowHeight();
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    const below = top + rowHeight() - scroller.clientHeight;
    if (below > scroller.scrollTop) scroller.scrollTop = below;
    draw();
  }

  scroller.addEventListener("scroll", () => {
    const from = Math.max(0, first());
    const to = Math.min(from + visible(), state.total || 0);
    for (let number = from; number < to; number += 1) {
      if (!state.rows.has(number)) {
        refresh();
        return;
      }
    }
  }, { passive: true });
  heads();
  return {
    element,
    again,
    // An answer that is on its way is awaited: it may take longer than the next news.
    refresh: () => state.asking || refresh(),
    key(event) {
      if (event.key === "ArrowDown" || event.key === "j") move(1);
      else if (event.key === "ArrowUp" || event.key === "k") move(-1);
      else if (event.key === "PageDown") move(visible());
      else if (event.key === "PageUp") move(-visible());
      else if (event.key === "Enter" && open && state.rows.has(state.chosen)) open(state.rows.get(state.chosen));
      else return false;
      event.preventDefault();
      return true;
    },
  };
}

/** What a list shows where there is nothing. */
export const none = (title, ...more) => (live = true) => (live ? empty(title, ...more) : empty("No store answers", "What there is is not known yet"));
