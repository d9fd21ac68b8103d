// Consumer groups of Kafka's clients: who reads, what they have committed, and how far behind they are.

import { get } from "./api.js";
import { badge, h, link, poll, put, table } from "./dom.js";
import { count, plural, size, span, whole } from "./format.js";
import { list, none } from "./list.js";

export function show(main, { go, names }) {
  const [chosen] = names;
  const find = h("input", { type: "search", placeholder: "Find a group  /", "aria-label": "Find a group", oninput: () => rows.again() });
  const parts = h("div", { class: "stack" });
  const nothing = none("No consumer group", "Groups of Kafka's clients appear once they join or commit at a store's gateway");
  const rows = list({
    label: "groups",
    sort: "records_behind",
    down: true,
    nothing: (live) => (find.value ? none("No group has this in its name")() : nothing(live)),
    load: async (window, signal) => { const found = await get("groups", {}, signal); return { ...part(found.rows, window), live: found.live }; },
    open: (row) => go("groups", row.name),
    columns: [
      { key: "name", title: "group", width: "minmax(110px, 2.4fr)", cell: (row) => h("a", { class: "name", href: link("groups", row.name), tabindex: -1 }, row.name) },
      { key: "state", title: "state", width: "76px", cell: (row) => badge(row.state, row.members ? "good" : "") },
      { key: "members", title: "members", kind: "number wide", width: "92px", cell: (row) => whole(row.members) },
      { key: "partitions", title: "partitions", kind: "number wide", width: "100px", cell: (row) => whole(row.partitions) },
      { key: "records_behind", title: "behind", kind: "number accent", width: "84px", cell: (row) => count(row.records_behind) },
      { key: "bytes_behind", title: "size", kind: "number wide", width: "100px", cell: (row) => size(row.bytes_behind) },
      { key: "seconds_behind", title: "waiting", kind: "number wide", width: "100px", cell: (row) => span(row.seconds_behind) },
    ],
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Groups"), find), rows.element, parts);

  function part(found, { start, most, sort, down }) {
    const wanted = find.value.toLowerCase();
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const sorted = found.filter((row) => row.name.toLowerCase().includes(wanted))
      .sort((a, b) => (down ? -1 : 1) * order(a[sort] ?? -1, b[sort] ?? -1) || order(a.name, b.name));
    return { total: sorted.length, rows: sorted.slice(start, start + most) };
  }

  const members = poll(parts, () => get("group", { group: chosen }), (found) => put(parts,
    h("div", { class: "head" }, h("h2", { class: "name" }, chosen), h("small", { class: "faint" }, plural(found.total, "partition"))),
    h("section", { class: "card" }, table(
      [["topic"], ["partition", "number"], ["committed", "number"], ["next", "number"], ["behind", "number"], ["waiting", "number wide"], ["member", "wide"], ["client"], ["host", "wide"]],
      found.rows.slice(0, 100).map((row) => [topic(row), whole(row.number), whole(row.committed), whole(row.end), whole(row.records_behind), span(row.seconds_behind),
        row.member ? h("code", { title: row.member }, row.member.length > 20 ? `${row.member.slice(0, 18)}…` : row.member) : "–", row.client ?? "–", row.host ?? "–"]), "partitions"))));
  const topic = (row) => (row.partition
    ? h("a", { href: link("records", row.topic, row.partition, row.committed), title: row.partition }, row.topic) : row.topic);

  const tick = () => { rows.refresh(); if (chosen) members(); };
  tick();
  return { tick, key: (event) => rows.key(event) };
}
