// Stores, and what a diagnosis has found.

import { get } from "./api.js";
import { badge, empty, h, poll, put, table } from "./dom.js";
import { ago, short, size, span, whole } from "./format.js";

const ORDER = ["problem", "warning", "ok"];
const KINDS = { ok: "good", warning: "warn", problem: "bad" };

export function show(main) {
  const findings = h("div", { class: "stack" }, h("p", { class: "faint" }, "asking all nodes …"));
  const stores = h("div", { class: "card" });
  const staged = h("div", { class: "card" });
  main.append(h("div", { class: "head" }, h("h1", {}, "Health")), findings, h("h2", {}, "Stores"), stores, h("h2", {}, "Staged"), staged);
  let at = 0;
  const ask = poll(findings, () => get("health"), (found) => {
    put(findings, [...found.findings].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity)).map((each) => h("div", { class: `finding ${KINDS[each.severity]}` }, badge(each.about), h("div", {}, h("p", {}, each.sentence), each.remedy && h("p", { class: "faint" }, each.remedy)))));
    put(stores, table([["store"], ["state"], ["partitions", "number"], ["behind", "number"], ["file", "number"], ["free in it", "number"], ["leases", "number"], ["answers in", "number"], ["keeps"]],
      found.stores.map((each) => [h("code", { title: (each.locations || []).join("\n") }, short(each.store)),
        each.here ? badge("up", "good") : h("span", { title: each.failure }, badge("away", "bad"), " ", each.since_us ? `heard ${ago(each.since_us)}` : each.failure),
        whole(each.partitions), each.behind ? h("span", { class: "warn" }, whole(each.behind)) : whole(each.behind), size(each.file_bytes), size(each.free_bytes), whole(each.leases), each.here ? `${each.answered_ms} ms` : "–", each.rules ? (each.rules.join("  ") || "everything") : "–"]), "stores"));
    put(staged, found.staged.length ? table([["store"], ["topic"], ["partition"], ["records", "number"], ["size", "number"], ["last added", "number"]],
      found.staged.map((each) => [short(each.store), each.topic, h("code", {}, each.partition.slice(0, 12)), whole(each.records), size(each.bytes), ago(each.last_us)]), "staged")
      : !found.live ? empty("No store answers") : empty("Nothing is staged", "Records of transactions that are not committed yet would be listed here"));
    at = Date.now();
  });
  const tick = () => Date.now() - at > 3000 && ask();
  ask();
  return { tick };
}
