// Spark's streaming queries: how far behind they are, and what they have noted of their batches.

import { get } from "./api.js";
import { chart, choice, chosen } from "./chart.js";
import { badge, empty, failed, h, link, poll, put, table, tiles } from "./dom.js";
import { ago, count, moment, plural, rate, short, size, span, whole } from "./format.js";

const STATES = { running: "good", finished: "", late: "bad" };

export function show(main) {
  const queries = h("div", { class: "stack" });
  const audited = h("div", { class: "stack" });
  const open = new Map(); // the contents of open details, by a key
  let drawn = "";
  const tick = poll(queries, () => get("queries", { window: chosen() }), (found) => {
    put(queries, found.queries.length ? found.queries.map(card)
      : found.live ? empty("No query reports its lag", "Spark's queries with option queryName report to topic __dafka.queries") : empty("No store answers"));
    const text = JSON.stringify([found.audited, found.live]);
    if (text === drawn) return;
    drawn = text;
    put(audited, found.audited.length ? found.audited.map(trail)
      : !found.live ? empty("No store answers") : empty("No query has an audit trail", "Spark's sink writes one with option audit, and dafka checkpoint verify checks it"));
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Queries"), choice(tick)), queries, h("h2", {}, "Audit trails"), audited);

  function card(query) {
    return h("section", { class: "card query" },
      h("div", { class: "head" }, h("h2", { class: "name" }, query.query), badge(query.state, STATES[query.state]), h("small", { class: "faint" }, `run ${short(query.run)}, reported ${span(query.reported_s)} ago`)),
      h("div", { class: "tiles" }, tiles([
        ["behind", count(query.records_behind), "records", query.records_behind ? "accent" : "", whole(query.records_behind)],
        ["waiting", span(query.seconds_behind), "the oldest of them"],
        ["size", size(query.bytes_behind), "not read yet"],
        query.state === "running" && ["reads", rate(query.read), `${rate(query.written)} are written`, query.read < 0.9 * query.written ? "warn" : ""],
      ])),
      chart(query.lags, { shown: count, label: "records behind", width: Math.max(320, main.clientWidth - 84), height: 130 }),
      details(`${query.query} ${query.run}`, "", plural(query.partitions, "partition"), () => partitions(query)));
  }

  function trail(query) {
    const title = [h("code", {}, query.query), ` · batch ${whole(query.batch)} · ${whole(query.batches)} in the trail · ${ago(query.time_us)}`];
    return details(query.partition, "card", title, () => batches(query));
  }

  /** Details that ask for their contents when they open, and stay open when they are drawn anew. */
  function details(key, kind, title, load) {
    const contents = open.get(key) || h("div", {});
    const element = h("details", { class: kind, open: open.has(key), ontoggle: () => { // also after it was made open
      if (!element.open) open.delete(key);
      else {
        open.set(key, contents);
        load().then((found) => put(contents, found)).catch((error) => put(contents, failed(error)));
      }
    } }, h("summary", {}, title), contents);
    return element;
  }

  tick();
  return { tick };
}

async function partitions({ query, run }) {
  const found = await get("query", { query, run });
  return table([["topic"], ["partition"], ["position", "number"], ["next", "number"], ["behind", "number"], ["waiting", "number"]],
    found.rows.slice(0, 100).map((row) => [row.topic, h("a", { class: "mono", href: link("records", row.topic, row.partition, row.position), title: row.partition }, short(row.partition)), whole(row.position), whole(row.end), whole(row.records_behind), span(row.seconds_behind)]), "partitions");
}

async function batches({ partition }) {
  const found = await get("audit", { partition });
  return table([["batch", "number"], ["rows", "number"], ["chain"], ["written"], ["ranges"]], found.rows.map((row) => [
    row.batch === undefined ? "–" : whole(row.batch), whole(row.rows),
    badge(row.chain, row.chain === "holds" ? "good" : row.chain === "begins" ? "" : "bad"), moment(row.time_us),
    h("div", { class: "ranges" }, (row.ranges || []).map((range) => h("a", { href: link("records", range.topic, range.partition, range.start), title: range.digest },
      `${range.topic} ${range.partition.slice(0, 6)} ${whole(range.start)}–${whole(range.end)}`)))]), "batches");
}
