// The map, and how much is written.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { empty, failed, h, put } from "./dom.js";
import { byteRate, count, plural, rate, size, whole } from "./format.js";
import { drawMap, legend } from "./map.js";

export function show(main) {
  const tiles = h("div", { class: "tiles" });
  const map = h("div", { class: "card map-card" });
  const graphs = h("div", { class: "two" });
  main.append(tiles, map, graphs);
  let asking = false;

  async function tick() {
    if (asking) return;
    asking = true;
    try {
      const [overview, found] = await Promise.all([get("overview"), get("map")]);
      if (!main.contains(map)) return;
      draw(overview, found);
    } catch (error) {
      put(map, failed(error));
    } finally {
      asking = false;
    }
  }

  function draw(overview, found) {
    put(tiles, [
      ["records", count(overview.records), `${plural(overview.topics, "topic")}, ${plural(overview.partitions, "partition")}`, "", whole(overview.records)],
      ["size", size(overview.bytes), `${size(overview.file_bytes)} in ${plural(overview.stores_listed.filter((each) => each.file_bytes).length, "file")} of stores`, "", `${whole(overview.bytes)} bytes`],
      ["written now", rate(overview.rate), byteRate(overview.byte_rate), "accent"],
      ["nodes", count(overview.nodes), plural(overview.towers, "tower")],
    ].map(([name, value, more, kind, exact]) => h("div", { class: `tile ${kind || ""}`, title: exact }, h("span", {}, name), h("b", {}, value), h("small", {}, more))));
    if (!found.nodes.length) put(map, empty("No nodes yet", "Start a store with: dafka store --dir DIR"));
    else put(map, drawMap(found, overview.stores_listed, Math.max(300, map.clientWidth - 32)), legend());
    const width = main.clientWidth < 760 ? Math.max(320, main.clientWidth - 62) : 640;
    put(graphs,
      chart(overview.history.map((each) => [each[0], each[1]]), { width, shown: count, label: "records per second" }),
      chart(overview.history.map((each) => [each[0], each[2]]), { width, shown: size, step: 1024, label: "bytes per second" }));
  }

  tick();
  return { tick };
}
