// Spark's streaming queries: how far behind they are, and what they have noted of their batches.

import { get } from "./api.js";
import { chart, choice, chosen } from "./chart.js";
import { badge, empty, failed, h, link, poll, put, table, tiles } from "./dom.js";
import { ago, count, moment, plural, rate, short, size, span, whole } from "./format.js";

const STATES = { running: "good", finished: "", late: "bad" };

export function show(main) {
  const queries = h("div", { class: "stack" });
  const audited = h("div", { class: "stack" });
  const open = new Set();
  const state = { trail: null, last: "" };
  const tick = poll(queries, () => get("queries", { window: chosen() }), (found) => {
    put(queries, found.queries.length ? found.queries.map(card)
      : found.live ? empty("No query reports its lag", "Spark's queries with option queryName report to topic __dafka.queries") : empty("No store answers"));
    const text = JSON.stringify([found.audited, found.live]);
    if (text !== state.last) {
      state.last = text;
      drawAudited(found.audited, found.live);
    }
  });
  main.append(h("div", { class: "head" }, h("h1", {}, "Queries"), choice(tick)), queries, h("h2", {}, "Audit trails"), audited);

  function card(query) {
    const id = `${query.query} ${query.run}`;
    const lags = h("div", {});
    const more = h("details", { open: open.has(id), ontoggle: () => { more.open ? open.add(id) : open.delete(id); if (more.open) partitions(query, lags); } },
      h("summary", {}, plural(query.partitions, "partition")), lags);
    if (open.has(id)) partitions(query, lags);
    return h("section", { class: "card query" },
      h("div", { class: "head" }, h("h2", { class: "name" }, query.query), badge(query.state, STATES[query.state]), h("small", { class: "faint" }, `run ${short(query.run)}, reported ${span(query.reported_s)} ago`)),
      h("div", { class: "tiles" }, tiles([
        ["behind", count(query.records_behind), "records", query.records_behind ? "accent" : "", whole(query.records_behind)],
        ["waiting", span(query.seconds_behind), "the oldest of them"],
        ["size", size(query.bytes_behind), "not read yet"],
        query.state === "running" && ["reads", rate(query.read), `${rate(query.written)} are written`, query.read < 0.9 * query.written ? "warn" : ""],
      ])),
      chart(query.lags, { shown: count, label: "records behind", width: Math.max(320, main.clientWidth - 84), height: 130 }), more);
  }

  async function partitions(query, element) {
    try {
      const found = await get("query", { query: query.query, run: query.run });
      put(element, table([["topic"], ["partition"], ["position", "number"], ["next", "number"], ["behind", "number"], ["waiting", "number"]],
        found.rows.slice(0, 100).map((row) => [row.topic, h("a", { class: "mono", href: link("records", row.topic, row.partition, row.position), title: row.partition }, short(row.partition)), whole(row.position), whole(row.end), whole(row.records_behind), span(row.seconds_behind)]), "partitions"));
    } catch (error) {
      put(element, failed(error));
    }
  }

  function drawAudited(found, live) {
    put(audited, found.length ? found.map((each) => {
      const trail = h("div", {});
      const more = h("details", { class: "card", open: state.trail === each.partition, ontoggle: () => { if (more.open) { state.trail = each.partition; draw(each, trail); } else if (state.trail === each.partition) state.trail = null; } },
        h("summary", {}, h("code", {}, each.query), ` · batch ${whole(each.batch)} · ${whole(each.batches)} in the trail · ${ago(each.time_us)}`), trail);
      if (state.trail === each.partition) draw(each, trail);
      return more;
    }) : !live ? empty("No store answers") : empty("No query has an audit trail", "Spark's sink writes one with option audit, and dafka checkpoint verify checks it"));
  }

  async function draw(query, element) {
    try {
      const found = await get("audit", { partition: query.partition });
      put(element, table([["batch", "number"], ["rows", "number"], ["chain"], ["written"], ["ranges"]], found.rows.map((row) => [
        row.batch === undefined ? "–" : whole(row.batch), whole(row.rows),
        badge(row.chain, row.chain === "holds" ? "good" : row.chain === "begins" ? "" : "bad"), moment(row.time_us),
        h("div", { class: "ranges" }, (row.ranges || []).map((range) => h("a", { href: link("records", range.topic, range.partition, range.start), title: range.digest },
          `${range.topic} ${range.partition.slice(0, 6)} ${whole(range.start)}–${whole(range.end)}`)))]), "batches"));
    } catch (error) {
      put(element, failed(error));
    }
  }

  tick();
  return { tick };
}
