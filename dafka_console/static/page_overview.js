// The map, and how much is written.

import { get } from "./api.js";
import { chart, choice, chosen } from "./chart.js";
import { empty, h, poll, put, tiles } from "./dom.js";
import { byteRate, count, plural, rate, size, whole } from "./format.js";
import { drawMap, legend } from "./map.js";

export function show(main) {
  const numbers = h("div", { class: "tiles" });
  const map = h("div", { class: "card map-card" });
  const graphs = h("div", { class: "two" });
  const tick = poll(map, () => Promise.all([get("overview", { window: chosen() }), get("map")]), ([overview, found]) => {
    put(numbers, tiles([
      ["records", count(overview.records), `${plural(overview.topics, "topic")}, ${plural(overview.partitions, "partition")}`, "", whole(overview.records)],
      ["size", size(overview.bytes), `${size(overview.file_bytes)} in ${plural(overview.stores_listed.filter((each) => each.file_bytes).length, "file")} of stores`, "", `${whole(overview.bytes)} bytes`],
      ["written now", rate(overview.rate), byteRate(overview.byte_rate), "accent"],
      ["nodes", count(overview.nodes), plural(overview.towers, "tower")],
    ]));
    if (!found.nodes.length) put(map, empty("No nodes yet", "Start a store with: dafka store --dir DIR"));
    else put(map, drawMap(found, overview.stores_listed, Math.max(300, map.clientWidth - 32)), legend());
    const width = Math.max(300, graphs.clientWidth / (graphs.clientWidth < 680 ? 1 : 2) - 50);
    put(graphs,
      chart(overview.rates, { width, shown: count, label: "records per second" }),
      chart(overview.byte_rates, { width, shown: size, step: 1024, label: "bytes per second" }));
  });
  main.append(numbers, map, h("div", { class: "head" }, h("h2", {}, "Written"), choice(tick)), graphs);
  tick();
  return { tick };
}
