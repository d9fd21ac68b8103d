// The records of a topic, or of one of its partitions: browsed, searched, one of them opened.

import { get, url } from "./api.js";
import { badge, empty, failed, h, put } from "./dom.js";
import { moment, plural, size, whole } from "./format.js";

const PAGE = 50;
const FORMATS = ["auto", "text", "json", "avro", "arrow", "hex"];

/** A table of records; rows are as the API has them. */
export function recordRows(rows, topic, open, mixed = false) {
  const heads = [["time wide", "time"], mixed && ["partition wide", "partition"], ["offset", "offset"], ["key", "key"], ["value", "value"], ["meta", "format, size"]].filter(Boolean);
  return h("div", { class: mixed ? "records mixed" : "records", role: "table", "aria-label": "records" }, h("div", { class: "record-head", role: "row" }, heads.map(([kind, title]) => h("span", { class: kind, role: "columnheader" }, title))), rows.map((row) => {
    const value = row.format === "null" ? h("i", { class: "faint" }, "null")
      : row.format === "image" ? h("img", { class: "thumb", loading: "lazy", alt: row.media, src: url("value", { topic, partition: row.partition, offset: row.offset }) })
        : row.value ? h("span", { class: row.format === "hex" ? "mono" : "" }, row.value) : h("i", { class: "faint" }, row.bytes ? `${row.format}, opened when you open it` : "empty");
    return h("button", { class: "record", role: "row", "data-offset": row.offset, onclick: () => open(row) },
      h("span", { class: "time wide" }, moment(row.time_us)),
      mixed && h("span", { class: "partition wide", title: row.partition }, row.partition.slice(0, 8)),
      h("span", { class: "offset" }, whole(row.offset)),
      h("span", { class: "key" }, row.key || h("i", { class: "faint" }, "–")),
      h("span", { class: "value" }, value),
      h("span", { class: "meta" }, badge(row.format), h("small", {}, size(row.bytes)), row.headers > 0 && h("small", {}, `${row.headers} hdr`)));
  }));
}

export function show(main, { names }) {
  const [topic, partition, at] = names;
  const state = { following: false, chosen: -1 };
  const find = h("input", { type: "search", placeholder: "Find a text in keys and values  /", "aria-label": "Find a text" });
  const condition = h("input", { class: "wide", placeholder: "or a condition: key = 'a' and offset > 100", "aria-label": "Condition", spellcheck: "false" });
  const follow = h("input", { type: "checkbox", onchange: () => { state.following = follow.checked; if (follow.checked) browse.tick(); } });
  const said = h("p", { class: "said" });
  const rows = h("div", { class: "card" });
  const detail = h("aside", { class: "detail", hidden: true });
  const button = (text, title, action) => h("button", { title, onclick: action }, text);
  const shared = { topic, partition, find, condition, said, button, ask, draw, isFollowing: () => state.following };
  const browse = (partition ? onePartition : allPartitions)(shared);
  main.append(
    h("div", { class: "head" }, h("h1", {}, h("a", { href: `#/topic/${encodeURIComponent(topic)}`, class: "up name" }, topic), " / ",
      partition ? h("code", {}, partition.length > 20 ? `${partition.slice(0, 18)}…` : partition) : "records")),
    h("form", { class: "finder", onsubmit: (event) => { event.preventDefault(); browse.search(); } }, find, condition, browse.range, h("button", { type: "submit" }, "Search")),
    h("div", { class: "pager" }, browse.first,
      button("← older", "older records (←)", browse.older), button("newer →", "newer records (→)", browse.newer),
      button("latest ⇥", "the last records", browse.latest), browse.jumps,
      h("label", { class: "check" }, follow, "follow"), said),
    h("div", { class: "browse" }, rows, detail));

  /** Asks for records; null after a failure, which is shown. */
  async function ask(parameters, following = false) {
    if (!following) state.following = follow.checked = false;
    try {
      const found = await get("records", { topic, partition, most: PAGE, ...parameters });
      return main.contains(rows) ? found : null;
    } catch (error) {
      put(rows, failed(error));
      return null;
    }
  }

  function draw(shown, why) {
    state.chosen = -1;
    put(rows, shown.length ? recordRows(shown, topic, open, !partition) : empty("No records here", why));
  }

  async function open(row, format = "auto", schema = "") {
    const place = { topic, partition: row.partition || partition, offset: row.offset };
    try {
      const found = await get("record", { ...place, format, schema });
      drawDetail(found, place, format, schema);
    } catch (error) {
      put(detail, failed(error));
    }
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
      h("dl", { class: "facts" }, !partition && facts("partition", h("a", { href: `#/records/${[topic, place.partition, place.offset].map(encodeURIComponent).join("/")}` }, place.partition)), facts("written", moment(found.time_us)), facts("size", `${size(found.bytes)} (${whole(found.bytes)})`),
        facts("key", found.key.format === "null" ? "–" : h("code", {}, found.key.text))),
      found.headers.length > 0 && [h("h3", {}, "Headers"), h("dl", { class: "facts" }, found.headers.map((each) => facts(each.name, each.value.text)))],
      h("div", { class: "head" }, h("h3", {}, "Value"), badge(value.format), choose,
        h("a", { class: "button", href: url("value", { ...place, download: 1 }), download: `${place.offset}.bin` }, "Download")),
      value.note && h("p", { class: "note" }, value.note),
      format === "avro" && [schemaInput, h("button", { onclick: () => open(place, "avro", schemaInput.value) }, "Decode")],
      value.format === "image" ? h("img", { class: "picture", alt: "the record's value, a picture", src: url("value", place) })
        : value.format === "null" ? h("p", { class: "faint" }, "null: the record has a key, and no value")
          : h("pre", { class: "text", tabindex: "0" }, value.text));
  }

  const facts = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

  function key(event) {
    if (event.key === "ArrowLeft") browse.older();
    else if (event.key === "ArrowRight") browse.newer();
    else if (event.key === "Escape" && !detail.hidden) detail.hidden = true;
    else if (["ArrowDown", "ArrowUp", "j", "k"].includes(event.key)) {
      const buttons = [...rows.querySelectorAll(".record")];
      const step = event.key === "ArrowDown" || event.key === "j" ? 1 : -1;
      state.chosen = Math.min(Math.max(state.chosen + step, 0), buttons.length - 1);
      buttons[state.chosen]?.focus();
    } else return false;
    event.preventDefault();
    return true;
  }

  if (at !== undefined && /^\d+$/.test(at)) {
    browse.load({ offset: Math.max(0, Number(at) - 10) });
    open({ offset: Number(at), partition });
  } else browse.latest();
  return { key, tick: () => state.following && browse.tick() };
}

/** Browses a partition by offsets. */
function onePartition({ find, condition, said, button, ask, draw, isFollowing }) {
  const state = { rows: [], earliest: 0, end: 0, looked: 0 };
  const jump = h("input", { class: "jump", inputmode: "numeric", placeholder: "offset", "aria-label": "Offset" });
  const since = h("input", { class: "wide", type: "datetime-local", step: "1", "aria-label": "Time" });

  async function load(parameters, following = false) {
    const found = await ask(parameters, following);
    if (!found) return null;
    Object.assign(state, { rows: found.rows, earliest: found.earliest, end: found.end, looked: found.looked });
    draw(isFollowing() ? [...state.rows].reverse() : state.rows, state.end > state.earliest ? "Nothing fits, or the partition begins or ends here" : "Nothing was written yet");
    const [first, last] = [state.rows[0], state.rows[state.rows.length - 1]];
    said.textContent = first ? `${whole(first.offset)} – ${whole(last.offset)} of ${whole(state.earliest)} – ${whole(state.end - 1)}` : `${whole(state.earliest)} – ${whole(state.end)}`;
    return found;
  }

  async function look(from, before = 0) {
    said.textContent = "looking …";
    const found = await load({ offset: from, find: find.value, where: condition.value });
    if (!found) return;
    const scanned = before + found.scanned;
    const on = found.looked < found.end;
    said.textContent = `${found.rows.length} found in ${whole(scanned)} records${on ? ", " : ", all of them looked at"}`;
    if (on) said.append(button(`look on from ${whole(found.looked)}`, "", () => look(found.looked, scanned)));
  }

  const latest = () => load({});
  const byTime = () => { const us = timeOf(since); if (us !== undefined) load({ time_us: us }); };
  return {
    load,
    latest,
    search: () => (find.value || condition.value ? look(state.earliest) : latest()),
    older: () => state.rows.length && load({ offset: Math.max(state.earliest, state.rows[0].offset - PAGE) }),
    newer: () => state.looked < state.end && load({ offset: state.looked }),
    tick: () => load({}, true),
    first: button("⇤ first", "the earliest records", () => load({ offset: state.earliest })),
    jumps: [
      h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); if (/^\d+$/.test(jump.value)) load({ offset: jump.value }); } }, jump),
      h("form", { class: "inline wide", onsubmit: (event) => { event.preventDefault(); byTime(); } }, since, h("button", { type: "submit" }, "Go")),
    ],
  };
}

/** Browses all partitions, newest first; pages that were seen are kept. */
function allPartitions({ find, condition, said, button, ask, draw, isFollowing }) {
  let [pages, at, asking] = [[], 0, false];
  const [since, until] = ["From", "To"].map((label) => h("input", { type: "datetime-local", step: "1", "aria-label": label }));

  function show() {
    const page = pages[at];
    draw(page.rows, page.more ? "Nothing fits so far" : page.total ? "Nothing fits" : "None were written in this time");
    const before = pages.slice(0, at).reduce((sum, each) => sum + each.rows.length, 0);
    const searched = page.searched ? `${before + page.rows.length} found in ${whole(page.scanned)} of ${whole(page.total)} records`
      : page.rows.length ? `${whole(before + 1)} to ${whole(before + page.rows.length)} of ${whole(page.total)}, newest first` : "";
    said.textContent = [searched, page.lacking && `not all of ${plural(page.lacking, "partition")}: stores are away`].filter(Boolean).join("; ");
    if (page.more && page.rows.length < PAGE) said.append(button("look on", "records before those", on));
  }

  /** Asks for one page at a time: null while another is asked for. */
  async function page(parameters, following = false) {
    if (asking) return null;
    asking = true;
    if (!following) said.textContent = "looking …";
    try {
      return await ask(parameters, following);
    } finally {
      asking = false;
    }
  }

  async function begin(parameters, following = false) {
    const found = await page(parameters, following);
    if (!found || (following && !isFollowing())) return;
    [pages, at] = [[{ ...found, searched: Boolean(parameters.find || parameters.where) }], 0];
    show();
  }

  /** Completes a page that ended early. */
  async function on() {
    const last = pages[at];
    const found = await page({ pages: 1, more: last.more });
    if (!found) return;
    pages[at] = { ...last, ...found, rows: [...last.rows, ...found.rows] };
    show();
  }

  async function older() {
    if (isFollowing()) await latest();
    if (!pages.length) return;
    if (at + 1 === pages.length) {
      const found = pages[at].more && await page({ pages: 1, more: pages[at].more });
      if (!found) return;
      pages.push({ ...found, searched: pages[at].searched });
    }
    at += 1;
    show();
  }

  function search() {
    const to = timeOf(until);
    // The second that was entered is part of the range.
    return begin({ pages: 1, find: find.value, where: condition.value, since_us: timeOf(since), until_us: to === undefined ? to : to + 1e6 });
  }

  const latest = () => begin({ pages: 1 });
  const newer = () => { if (at > 0) { at -= 1; show(); } else latest(); };
  return { latest, search, older, newer, tick: () => begin({}, true), range: [h("label", { class: "check" }, "from", since), h("label", { class: "check" }, "to", until)] };
}

function timeOf(input) {
  const ms = new Date(input.value).getTime();
  return Number.isNaN(ms) ? undefined : ms * 1000;
}
