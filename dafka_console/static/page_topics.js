// All topics.

import { get } from "./api.js";
import { spark } from "./chart.js";
import { badge, h, link } from "./dom.js";
import { ago, byteRate, count, moment, moving, rate, size, whole } from "./format.js";
import { list, none } from "./list.js";

export function show(main, { go, news }) {
  const find = h("input", { type: "search", placeholder: "Find a topic  /", "aria-label": "Find a topic", oninput: () => rows.again() });
  const internal = h("input", { type: "checkbox", onchange: () => rows.again() });
  const rows = list({
    label: "topics",
    sort: "rate",
    down: true,
    nothing: (live) => (find.value ? none("No topic has this in its name") : none("No topics yet", "Write to one with dafka produce TOPIC, or on the page Produce"))(find.value || live),
    load: (window, signal) => get("topics", { ...window, find: find.value, internal: internal.checked ? 1 : 0 }, signal),
    open: (row) => go("topic", row.name),
    more: (total) => !find.value && news()?.topics > total && `, and ${news().topics - total} of Dafka's own`,
    columns: [
      { key: "name", title: "topic", width: "minmax(120px, 2.4fr)", cell: (row) => [h("a", { class: "name", href: link("topic", row.name), tabindex: -1 }, row.name), row.internal && badge("internal"), row.stale > 0 && badge(row.stale < row.partitions ? `${row.stale} of ${row.partitions} away` : "away", "bad")] },
      { key: "partitions", title: "partitions", kind: "number wide", width: "100px", cell: (row) => whole(row.partitions) },
      { key: "records", title: "records", kind: "number", width: "90px", exact: whole, cell: (row) => count(row.records) },
      { key: "bytes", title: "size", kind: "number wide", width: "100px", exact: whole, cell: (row) => size(row.bytes) },
      { key: "rate", title: "records/s", kind: "number accent", width: "96px", cell: (row) => moving(row.rate, rate) },
      { key: "byte_rate", title: "bytes/s", kind: "number wide", width: "110px", cell: (row) => moving(row.byte_rate, byteRate) },
      { title: "", kind: "wide", width: "112px", cell: (row) => spark(row.spark) },
      { key: "last_us", title: "last written", kind: "number wide", width: "120px", exact: moment, cell: (row) => ago(row.last_us) },
    ],
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Topics"), find, h("label", { class: "check wide" }, internal, "Dafka's own")), rows.element);
  rows.again();
  return { tick: () => rows.refresh(), key: (event) => rows.key(event) };
}
