// One topic: its partitions, and its newest records.

import { get } from "./api.js";
import { chart, choice, chosen } from "./chart.js";
import { badge, empty, h, link, poll, put, tiles } from "./dom.js";
import { ago, byteRate, count, moment, moving, plural, rate, short, size, whole } from "./format.js";
import { list, none } from "./list.js";
import { recordRows } from "./page_records.js";

export function show(main, { go, names, news }) {
  const [topic] = names;
  const numbers = h("div", { class: "tiles" });
  const graph = h("div", {});
  const last = h("div", { class: "card" });
  const find = h("input", { type: "search", placeholder: "Find a partition or client  /", "aria-label": "Find a partition", oninput: () => rows.again() });
  const rows = list({
    label: "partitions",
    sort: "last_us",
    down: true,
    nothing: (live) => none(find.value ? "No partition has this in its name" : "No partitions")(find.value || live),
    load: (window, signal) => get("partitions", { ...window, topic, find: find.value }, signal),
    open: (row) => go("records", topic, row.name),
    columns: [
      { key: "name", title: "partition", width: "minmax(90px, 2fr)", cell: (row) => [h("a", { class: "mono", title: row.name, href: link("records", topic, row.name), tabindex: -1 }, row.name), row.producing && badge("producer here", "good")] },
      { title: "client", kind: "wide", width: "minmax(80px, 1.6fr)", cell: (row) => h("span", { title: row.client }, row.client || "–") },
      { key: "earliest", title: "earliest", kind: "number wide", width: "110px", cell: (row) => whole(row.earliest) },
      { key: "end", title: "next", kind: "number wide", width: "96px", cell: (row) => whole(row.end) },
      { key: "bytes", title: "size", kind: "number wide", width: "100px", exact: whole, cell: (row) => size(row.bytes) },
      { key: "rate", title: "records/s", kind: "number accent", width: "84px", cell: (row) => moving(row.rate, rate) },
      { key: "holders", title: "stores", kind: "number wide", width: "90px", cell: (row) => stores(row, news()) },
      { key: "last_us", title: "last written", kind: "number", width: "96px", exact: moment, cell: (row) => ago(row.last_us) },
    ],
  });
  main.append(h("div", { class: "head" }, h("h1", {}, h("a", { href: link("topics"), class: "up" }, "Topics"), " / ", h("span", { class: "name" }, topic)),
    h("a", { class: "button", href: link("records", topic) }, "Records"), h("a", { class: "button", href: link("produce", topic) }, "Produce")), numbers,
  h("div", { class: "head" }, h("h2", {}, "Written"), choice(() => tick())), graph,
  h("div", { class: "head" }, h("h2", {}, "Partitions"), find), rows.element, h("h2", {}, "Newest records"), last);
  const ask = poll(numbers, async () => {
    const found = await get("topic", { topic, window: chosen() });
    return [found, found.stale < found.partitions && await get("records", { topic, most: 12 })];
  }, ([found, records]) => {
    put(numbers, tiles([
      ["records", count(found.records), plural(found.partitions, "partition"), "", whole(found.records)],
      ["size", size(found.bytes), found.records && found.bytes !== null ? `${size(found.bytes / found.records)} a record` : "", "", `${whole(found.bytes)} bytes`],
      ["written now", rate(found.rate), byteRate(found.byte_rate), "accent"],
      found.kept.length && ["kept", found.kept.length === 1 ? found.kept[0].replace(",", ", ") : "differs", found.kept.length === 1 ? "at each store that answers" : `by store: ${found.kept.join(" or ")}`],
      ["last written", ago(found.last_us), `first ${moment(found.first_us)}`, "", moment(found.last_us)],
    ]));
    put(graph, chart(found.rates, { shown: count, label: "records per second", width: Math.max(320, graph.clientWidth - 34), height: 130 }));
    put(last, !records ? empty("No store that has them answers") : records.rows.length ? recordRows(records.rows, topic, (row) => go("records", topic, row.partition, String(row.offset)), true) : empty(records.total ? "Too many partitions are being written: see “Records”" : "No records"));
  });

  function tick() {
    rows.refresh();
    ask();
  }

  rows.again();
  tick();
  return { tick, key: (event) => rows.key(event) };
}

function stores(row, news) {
  if (row.stale) return badge("away", "bad");
  const held = Object.entries(row.holders);
  const behind = held.filter(([, end]) => end < row.end).length;
  const title = held.map(([store, end]) => `${short(store)} has it up to ${whole(end)}`).join("\n");
  const full = !news || held.length >= news.stores;
  return h("span", { title, class: behind || !full ? "warn" : "" }, `${held.length - behind} of ${news ? news.stores : held.length}`);
}
