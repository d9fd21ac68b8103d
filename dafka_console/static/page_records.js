// The records of a topic, or of one of its partitions: browsed, searched, one of them opened.

import { get, url } from "./api.js";
import { badge, empty, failed, h, link, pressed, put, refocused } from "./dom.js";
import { moment, plural, size, whole } from "./format.js";

const PAGE = 50;
const FORMATS = ["auto", "text", "json", "avro", "arrow", "hex"];

/** A table of records; rows are as the API has them. */
export function recordRows(rows, topic, open, mixed = false) {
  const heads = [["time", "time"], mixed && ["partition wide", "partition"], ["offset", "offset"], ["key", "key"], ["value", "value"], ["meta", "format, size"]].filter(Boolean);
  return h("div", { class: mixed ? "records mixed" : "records", role: "table", "aria-label": "records" }, h("div", { class: "record-head", role: "row" }, heads.map(([kind, title]) => h("span", { class: kind, role: "columnheader", title: kind === "time" && `in ${Intl.DateTimeFormat().resolvedOptions().timeZone}` }, title))), rows.map((row) => {
    const value = row.format === "null" ? h("i", { class: "faint" }, "null")
      : row.format === "image" ? h("img", { class: "thumb", loading: "lazy", alt: row.media, src: url("value", { topic, partition: row.partition, offset: row.offset }) })
        : row.value ? h("span", { class: row.format === "hex" ? "mono" : "" }, row.value) : h("i", { class: "faint" }, row.bytes ? `${row.format}, opened when you open it` : "empty");
    return h("button", { class: "record", role: "row", "data-offset": row.offset, onclick: () => open(row) },
      h("span", { class: "time" }, moment(row.time_us)),
      mixed && h("span", { class: "partition wide", title: row.partition }, row.partition.slice(0, 8)),
      h("span", { class: "offset" }, whole(row.offset)),
      h("span", { class: "key" }, row.key || h("i", { class: "faint" }, "–")),
      h("span", { class: "value" }, value),
      h("span", { class: "meta" }, badge(row.format), h("small", {}, size(row.bytes)), row.headers > 0 && h("small", {}, plural(row.headers, "header"))));
  }));
}

/** Records of all partitions, or of one, newest first; pages that were seen are kept. */
export function show(main, { names }) {
  const [topic, partition, linked] = names;
  let [pages, at, asking, focused, opening] = [[], 0, false, -1, null];
  const find = h("input", { type: "search", placeholder: "Find a text in keys and values  /", "aria-label": "Find a text" });
  const condition = h("input", { class: "condition", placeholder: "or a condition: key = 'a'", "aria-label": "Condition", spellcheck: "false" });
  const [since, until] = ["From", "To"].map((label) => h("input", { type: "datetime-local", step: "1", "aria-label": label }));
  const follow = h("input", { type: "checkbox", onchange: () => follow.checked && begin({}, true) });
  const jump = h("input", { class: "jump", inputmode: "numeric", placeholder: "offset", "aria-label": "Offset" });
  const said = h("p", { class: "said", role: "status" });
  const rows = h("div", { class: "card" });
  const detail = h("aside", { class: "detail", "aria-label": "Record", hidden: true });
  const button = (text, title, action) => h("button", { type: "button", title, onclick: action }, text);
  const around = (offset) => begin({ pages: 1, before: Number(offset) + PAGE / 2 });
  main.append(
    h("div", { class: "head" }, h("h1", {}, h("a", { href: link("topic", topic), class: "up name" }, topic), " / ",
      partition ? h("code", { title: partition }, partition.length > 20 ? `${partition.slice(0, 18)}…` : partition) : "records")),
    h("form", { class: "finder", onsubmit: (event) => { event.preventDefault(); search(); } }, find, condition,
      h("label", { class: "check" }, "from", since), h("label", { class: "check" }, "to", until), h("button", { type: "submit" }, "Search")),
    h("div", { class: "pager" },
      partition && button("⇤ first", "the earliest records", () => begin({ pages: 1, before: (pages[0]?.offsets[0] ?? 0) + PAGE })),
      button("← older", "older records (←)", older), button("newer →", "newer records (→)", newer), button("latest ⇥", "the last records", latest),
      partition && h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); if (/^\d+$/.test(jump.value)) around(jump.value); } }, jump),
      h("label", { class: "check" }, follow, "follow"), said),
    h("div", { class: "browse" }, rows, detail));

  function draw() {
    const page = pages[at];
    refocused(() => put(rows, page.rows.length ? recordRows(page.rows, topic, open, !partition)
      : empty("No records here", page.more ? "Nothing fits so far" : page.total ? "Nothing fits" : "None were written in this time")));
    focused = buttons().indexOf(document.activeElement);
    const before = pages.slice(0, at).reduce((sum, each) => sum + each.rows.length, 0);
    const searched = page.searched ? `${before + page.rows.length} found in ${whole(page.scanned)} of ${whole(page.total)} records`
      : !page.rows.length ? "" : partition ? `${whole(page.rows[page.rows.length - 1].offset)} to ${whole(page.rows[0].offset)} of offsets ${whole(page.offsets[0])} to ${whole(page.offsets[1] - 1)}`
        : `${whole(before + 1)} to ${whole(before + page.rows.length)} of ${whole(page.total)}, newest first`;
    said.textContent = [searched, page.lacking && `not all of ${plural(page.lacking, "partition")}: stores are away`].filter(Boolean).join("; ");
    if (page.more && page.rows.length < PAGE) said.append(button("look on", "records before those", on));
  }

  /** Asks for one page at a time: null while another is asked for, and after a failure, which is shown. */
  async function ask(parameters, following = false) {
    if (asking) return null;
    asking = true;
    if (!following) {
      said.textContent = "looking …";
      follow.checked = false;
    }
    try {
      const found = await get("records", { topic, partition, most: PAGE, ...parameters });
      return rows.isConnected ? found : null;
    } catch (error) {
      put(rows, failed(error));
      said.textContent = "";
      return null;
    } finally {
      asking = false;
    }
  }

  async function begin(parameters, following = false) {
    const found = await ask(parameters, following);
    if (!found || (following && (!follow.checked || pressed()))) return;
    [pages, at] = [[{ ...found, searched: Boolean(parameters.find || parameters.where) }], 0];
    draw();
  }

  /** Completes a page that ended early. */
  async function on() {
    const last = pages[at];
    const found = await ask({ pages: 1, more: last.more });
    if (!found) return;
    pages[at] = { ...last, ...found, rows: [...last.rows, ...found.rows] };
    draw();
  }

  async function older() {
    if (follow.checked) await latest();
    if (!pages.length) return;
    if (at + 1 === pages.length) {
      const found = pages[at].more && await ask({ pages: 1, more: pages[at].more });
      if (!found) return;
      pages.push({ ...found, searched: pages[at].searched });
    }
    at += 1;
    draw();
  }

  function newer() {
    const page = pages[at];
    const top = page?.rows[0]?.offset;
    if (at > 0) { at -= 1; draw(); }
    else if (partition && top + 1 < page.offsets[1] && !page.searched) begin({ pages: 1, before: top + 1 + PAGE });
    else if (!page?.searched) latest();
  }

  function search() {
    const to = timeOf(until);
    // The second that was entered is part of the range.
    return begin({ pages: 1, find: find.value, where: condition.value, since_us: timeOf(since), until_us: to === undefined ? to : to + 1e6 });
  }

  function latest() {
    return begin({ pages: 1 });
  }

  async function open(row, format = "auto", schema = "") {
    const place = { topic, partition: row.partition || partition, offset: row.offset };
    opening = place;
    const found = await get("record", { ...place, format, schema }).catch((error) => error);
    if (opening !== place) return; // another one was opened since
    if (found instanceof Error) put(detail, failed(found));
    else drawDetail(found, place, format, schema);
    detail.hidden = false;
  }

  function drawDetail(found, place, format, schema) {
    const { value } = found;
    const choose = h("select", { "aria-label": "Format", onchange: () => open(place, choose.value, schemaInput.value) },
      FORMATS.map((each) => h("option", { value: each, selected: each === format }, each)));
    const schemaInput = h("textarea", { rows: 3, spellcheck: "false", placeholder: "Avro schema (JSON) of values without one", "aria-label": "Avro schema" });
    schemaInput.value = schema;
    put(detail,
      h("div", { class: "head" }, h("h2", {}, `Offset ${whole(found.offset)}`), h("button", { "aria-label": "Close", onclick: () => { detail.hidden = true; } }, "✕")),
      h("dl", { class: "facts" }, !partition && facts("partition", h("a", { href: link("records", topic, place.partition, place.offset) }, place.partition)),
        found.client && facts("client", found.client), facts("written", moment(found.time_us)), facts("size", found.bytes < 1024 ? size(found.bytes) : `${size(found.bytes)} (${whole(found.bytes)})`),
        facts("key", found.key.format === "null" ? "–" : h("code", {}, found.key.text))),
      found.headers.length > 0 && [h("h3", {}, "Headers"), h("dl", { class: "facts" }, found.headers.map((each) => facts(each.name, each.value.text)))],
      h("div", { class: "head" }, h("h3", {}, "Value"), badge(value.format), choose, navigator.clipboard && h("button", { onclick: () => navigator.clipboard.writeText(value.text) }, "Copy"),
        h("a", { class: "button", href: url("value", { ...place, download: 1 }), download: `${place.offset}.bin` }, "Download")),
      value.note && h("p", { class: "note" }, value.note),
      format === "avro" && [schemaInput, h("button", { onclick: () => open(place, "avro", schemaInput.value) }, "Decode")],
      value.format === "image" ? h("img", { class: "picture", alt: "the record's value, a picture", src: url("value", place) })
        : value.format === "null" ? h("p", { class: "faint" }, "null: the record has a key, and no value")
          : h("pre", { class: "text", tabindex: "0" }, value.text));
  }

  const buttons = () => [...rows.querySelectorAll(".record")];
  const facts = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

  function key(event) {
    const step = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1 }[event.key];
    if (event.key === "ArrowLeft") older();
    else if (event.key === "ArrowRight") newer();
    else if (event.key === "Escape" && !detail.hidden) detail.hidden = true;
    else if (step) {
      focused = Math.min(Math.max(focused + step, 0), buttons().length - 1);
      buttons()[focused]?.focus();
    } else return false;
    event.preventDefault();
    return true;
  }

  if (partition && /^\d+$/.test(linked ?? "")) {
    around(linked);
    open({ offset: Number(linked) });
  } else latest();
  return { key, tick: () => follow.checked && begin({}, true) };
}

function timeOf(input) {
  const ms = new Date(input.value).getTime();
  return Number.isNaN(ms) ? undefined : ms * 1000;
}
