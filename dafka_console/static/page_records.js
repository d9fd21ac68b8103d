// The records of a partition: browsed, searched, one of them opened.

import { get, url } from "./api.js";
import { badge, empty, failed, h, put } from "./dom.js";
import { moment, size, whole } from "./format.js";

const PAGE = 50;
const FORMATS = ["auto", "text", "json", "avro", "arrow", "hex"];

/** A table of records; rows are as the API has them. */
export function recordRows(rows, topic, open, mixed = false) {
  const heads = [["offset", mixed ? "offset, partition" : "offset"], ["time wide", "time"], ["key", "key"], ["value", "value"], ["meta", "format, size"]];
  return h("div", { class: "records", role: "table", "aria-label": "records" }, h("div", { class: "record-head", role: "row" }, heads.map(([kind, title]) => h("span", { class: kind, role: "columnheader" }, title))), rows.map((row) => {
    const value = row.format === "null" ? h("i", { class: "faint" }, "null")
      : row.format === "image" ? h("img", { class: "thumb", loading: "lazy", alt: row.media, src: url("value", { topic, partition: row.partition, offset: row.offset }) })
        : row.value ? h("span", { class: row.format === "hex" ? "mono" : "" }, row.value) : h("i", { class: "faint" }, row.bytes ? `${row.format}, opened when you open it` : "empty");
    return h("button", { class: "record", role: "row", "data-offset": row.offset, onclick: () => open(row) },
      h("span", { class: "offset" }, whole(row.offset), mixed && h("small", {}, row.partition.slice(0, 8))),
      h("span", { class: "time wide" }, moment(row.time_us)),
      h("span", { class: "key" }, row.key || h("i", { class: "faint" }, "–")),
      h("span", { class: "value" }, value),
      h("span", { class: "meta" }, badge(row.format), h("small", {}, size(row.bytes)), row.headers > 0 && h("small", {}, `${row.headers} hdr`)));
  }));
}

export function show(main, { go, names }) {
  const [topic, partition, at] = names;
  const state = { offset: null, rows: [], earliest: 0, end: 0, looked: 0, following: false, chosen: -1 };
  const where = { topic, partition };
  const find = h("input", { type: "search", placeholder: "Find a text in keys and values  /", "aria-label": "Find a text" });
  const condition = h("input", { class: "wide", placeholder: "or a condition: key = 'a' and offset > 100", "aria-label": "Condition", spellcheck: "false" });
  const jump = h("input", { class: "jump", inputmode: "numeric", placeholder: "offset", "aria-label": "Offset" });
  const since = h("input", { class: "wide", type: "datetime-local", step: "1", "aria-label": "Time" });
  const follow = h("input", { type: "checkbox", onchange: () => { state.following = follow.checked; if (follow.checked) load({}); } });
  const said = h("p", { class: "said" });
  const rows = h("div", { class: "card" });
  const detail = h("aside", { class: "detail", hidden: true });
  const button = (text, title, action) => h("button", { title, onclick: action }, text);
  const form = h("form", { class: "finder", onsubmit: (event) => { event.preventDefault(); search(state.earliest); } }, find, condition, h("button", { type: "submit" }, "Search"));
  main.append(
    h("div", { class: "head" }, h("h1", {}, h("a", { href: `#/topic/${encodeURIComponent(topic)}`, class: "up name" }, topic), " / ", h("code", {}, partition.length > 20 ? `${partition.slice(0, 18)}…` : partition))),
    form,
    h("div", { class: "pager" },
      button("⇤ first", "the earliest records", () => load({ offset: state.earliest })),
      button("← older", "older records (←)", () => older()), button("newer →", "newer records (→)", () => newer()),
      button("latest ⇥", "the last records", () => load({})),
      h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); if (/^\d+$/.test(jump.value)) load({ offset: jump.value }); } }, jump),
      h("form", { class: "inline wide", onsubmit: (event) => { event.preventDefault(); byTime(); } }, since, h("button", { type: "submit" }, "Go")),
      h("label", { class: "check" }, follow, "follow"), said),
    h("div", { class: "browse" }, rows, detail));

  async function load(parameters) {
    if (parameters.offset !== undefined || parameters.time_us !== undefined || parameters.find || parameters.where) {
      state.following = follow.checked = false;
    }
    try {
      const found = await get("records", { ...where, most: PAGE, ...parameters });
      if (!main.contains(rows)) return found;
      Object.assign(state, { rows: found.rows, earliest: found.earliest, end: found.end, looked: found.looked, chosen: -1 });
      draw();
      return found;
    } catch (error) {
      put(rows, failed(error));
      return null;
    }
  }

  function draw() {
    const shown = state.following ? [...state.rows].reverse() : state.rows;
    put(rows, shown.length ? recordRows(shown, topic, open) : empty("No records here", state.end > state.earliest ? "Nothing fits, or the partition begins or ends here" : "Nothing was written yet"));
    const [first, last] = [state.rows[0], state.rows[state.rows.length - 1]];
    said.textContent = first ? `${whole(first.offset)} – ${whole(last.offset)} of ${whole(state.earliest)} – ${whole(state.end - 1)}` : `${whole(state.earliest)} – ${whole(state.end)}`;
  }

  const older = () => state.rows.length && load({ offset: Math.max(state.earliest, state.rows[0].offset - PAGE) });
  const newer = () => state.looked < state.end && load({ offset: state.looked });
  const byTime = () => { const ms = new Date(since.value).getTime(); if (!Number.isNaN(ms)) load({ time_us: ms * 1000 }); };

  async function search(from, before = 0) {
    if (!find.value && !condition.value) {
      load({});
      return;
    }
    said.textContent = "looking …";
    const found = await load({ offset: from, find: find.value, where: condition.value });
    if (!found) return;
    const scanned = before + found.scanned;
    const on = found.looked < found.end;
    said.textContent = `${found.rows.length} found in ${whole(scanned)} records${on ? ", " : ", all of them looked at"}`;
    if (on) said.append(h("button", { onclick: () => search(found.looked, scanned) }, `look on from ${whole(found.looked)}`));
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
      h("dl", { class: "facts" }, facts("written", moment(found.time_us)), facts("size", `${size(found.bytes)} (${whole(found.bytes)})`),
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
    if (event.key === "ArrowLeft") older();
    else if (event.key === "ArrowRight") newer();
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
    load({ offset: Math.max(0, Number(at) - 10) });
    open({ offset: Number(at), partition });
  } else load({});
  return { key, tick: () => state.following && load({}) };
}
