// The cluster drawn: who writes on the left, stores in the middle, who reads on the right.  On a
// narrow screen the same from top to bottom.

import { h, s } from "./dom.js";
import { count, plural, rate, short, size } from "./format.js";

const MOST = 9;

const writes = ({ node, rate: of = node.rate }) => of >= 0.05; // records per second

/** An SVG of what /api/map says. */
export function drawMap(found, stores, width) {
  const files = new Map(stores.map((each) => [each.store, each.file_bytes]));
  const of = (...kinds) => found.nodes.filter((node) => kinds.includes(node.kind));
  const groups = {
    left: few(of("producer"), "producers"),
    middle: few(of("store"), "stores"),
    right: few([...of("consumer"), ...of("reader", "node"), ...of("console")], "others"),
  };
  const narrow = width < 700;
  const { places, height } = narrow ? fromTop(groups, width) : fromLeft(groups, width);
  const svg = s("svg", { class: "map", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${of("store").length} stores, ${of("producer").length} producers, ${of("consumer").length} consumers` });
  const links = s("g", {});
  const drawn = new Set();
  for (const link of found.links) {
    const [store, node] = [places.get(link.store), places.get(link.node)];
    if (!store || !node || store === node) continue;
    const key = `${store.key} ${node.key}`;
    if (drawn.has(key) && link.connected !== false) continue;
    drawn.add(key);
    // One over the other they would hide the boxes: there only what is wrong has a line.
    if (!narrow || link.connected === false) links.append(line(store, node, link, narrow));
  }
  if (narrow) links.append(...between(groups, places));
  svg.append(links);
  for (const place of new Set(places.values())) svg.append(box(place, files));
  towers(svg, found.towers, width);
  return svg;
}

function few(nodes, noun) {
  const ranked = [...nodes].sort((a, b) => (b.here - a.here) || (b.rate - a.rate) || (a.id < b.id ? -1 : 1));
  const all = ranked.map((node) => ({ key: node.id, node, ids: [node.id] }));
  if (all.length <= MOST) return all;
  const rest = ranked.slice(MOST - 1);
  const total = rest.reduce((sum, node) => sum + (node.rate || 0), 0);
  return [...all.slice(0, MOST - 1),
    { key: `more ${noun}`, more: rest.length, noun, rate: total, ids: rest.map((node) => node.id), node: { ...rest[0], here: true } }];
}

function fromLeft(groups, width) {
  const [side, store] = [Math.min(220, width * 0.26), Math.min(240, width * 0.28)];
  const height = Math.max(300, 70 + Math.max(groups.left.length * 58, groups.middle.length * 92, groups.right.length * 58) + 20);
  const places = new Map();
  const column = (items, x, w, hgt) => {
    const gap = Math.min(26, (height - 70 - items.length * hgt) / Math.max(items.length, 1));
    const all = items.length * hgt + (items.length - 1) * gap;
    items.forEach((item, n) => {
      const place = { ...item, x, w, h: hgt, y: 60 + Math.max(0, (height - 70 - all) / 2) + n * (hgt + gap) };
      item.ids.forEach((id) => places.set(id, place));
    });
  };
  column(groups.left, 2, side, 44);
  column(groups.middle, (width - store) / 2, store, 72);
  column(groups.right, width - side - 2, side, 44);
  return { places, height };
}

function fromTop(groups, width) {
  const places = new Map();
  let y = 46;
  const row = (items, hgt, columns) => {
    const gap = 10;
    const w = (width - 4 - gap * (columns - 1)) / columns;
    items.forEach((item, n) => {
      const place = { ...item, x: 2 + (n % columns) * (w + gap), w, h: hgt, y: y + Math.floor(n / columns) * (hgt + gap) };
      item.ids.forEach((id) => places.set(id, place));
    });
    if (items.length) y += Math.ceil(items.length / columns) * (hgt + gap) + 36;
  };
  row(groups.left, 44, 2);
  row(groups.middle, 72, Math.min(2, Math.max(1, groups.middle.length)));
  row(groups.right, 44, 2);
  return { places, height: y - 20 };
}

/** One line for each side: one for each link would hide the boxes. */
function between(groups, places) {
  const join = (above, below, kind) => {
    const [from, to] = [above, below].map((items) => items.map((item) => places.get(item.ids[0])));
    if (!from.length || !to.length) return null;
    const x = (Math.min(...from.map((each) => each.x)) + Math.max(...from.map((each) => each.x + each.w))) / 2;
    const [top, bottom] = [Math.max(...from.map((each) => each.y + each.h)), Math.min(...to.map((each) => each.y))];
    return s("path", { class: `link group ${kind}`, d: `M${x} ${top + 4}V${bottom - 4}` });
  };
  return [join(groups.left, groups.middle, groups.left.some(writes) ? "busy" : ""), join(groups.middle, groups.right, "reads")].filter(Boolean);
}

function line(store, node, link, narrow) {
  const bad = link.connected === false;
  const kind = bad ? "bad" : node.node.kind === "producer" && writes(node) ? "busy" : node.node.kind === "consumer" ? "reads" : "";
  const told = bad ? "not connected" : link.connected === null ? "the store cannot say" : "connected";
  return s("path", { class: `link ${kind}`, d: curve(store, node, narrow) }, s("title", {}, `${short(link.node)} and store ${short(link.store)}: ${told}`));
}

/** The path from the left or upper box to the other one. */
function curve(store, node, narrow) {
  const middle = ({ x, y, w, h: height }) => `${x + w / 2} ${y + height / 2}`;
  if (node.node.kind === "store") return `M${middle(store)}L${middle(node)}`;
  const [from, to] = (narrow ? node.y < store.y : node.x < store.x) ? [node, store] : [store, node];
  if (narrow) {
    const [ax, ay, bx, by] = [from.x + from.w / 2, from.y + from.h, to.x + to.w / 2, to.y];
    return `M${ax} ${ay}C${ax} ${(ay + by) / 2} ${bx} ${(ay + by) / 2} ${bx} ${by}`;
  }
  const [ax, ay, bx, by] = [from.x + from.w, from.y + from.h / 2, to.x, to.y + to.h / 2];
  return `M${ax} ${ay}C${(ax + bx) / 2} ${ay} ${(ax + bx) / 2} ${by} ${bx} ${by}`;
}

function box(place, files) {
  const { node } = place;
  const kind = place.more ? "more" : node.own ? "console" : node.kind;
  const group = s("g", { class: `node ${kind}${node.here ? "" : " away"}`, transform: `translate(${place.x} ${place.y})` });
  const fit = (text, letter) => {
    const room = Math.max(6, Math.floor((place.w - 24) / letter));
    return text.length > room ? `${text.slice(0, room - 1)}…` : text;
  };
  group.append(s("rect", { width: place.w, height: place.h, rx: 10 }));
  const lines = place.more ? [`${place.more} more ${place.noun}`, place.rate ? rate(place.rate) : ""] : words(node, files, place.w);
  const top = place.h / 2 - (lines.length - 1) * 9 + 4;
  lines.forEach((text, n) => group.append(s("text", { class: n ? "small" : "strong", x: 14, y: top + n * 18 }, fit(text, n ? 6.8 : 7.6))));
  if (writes(place) && node.here && !place.more) group.append(s("circle", { class: "pulse", cx: place.w - 14, cy: 14, r: 4 }));
  if (node.behind) group.append(s("circle", { class: "behind", cx: place.w - 14, cy: 14, r: 4 }));
  group.append(s("title", {}, [node.client, node.id, node.endpoint, node.failure].filter(Boolean).join("\n")));
  return group;
}

function words(node, files, width) {
  if (node.kind === "store") {
    if (!node.here) return [`store ${short(node.id)}`, "away"];
    const state = node.behind ? `${count(node.behind)} ${node.behind === 1 ? "record" : "records"} behind` : "has everything";
    return [`store ${short(node.id)}`, width < 190 ? `${count(node.partitions)} part. · ${size(files.get(node.id))}` : `${plural(node.partitions, "partition")} · ${size(files.get(node.id))}`, state];
  }
  if (node.own) return ["this console", "reads"];
  const more = node.topic_count > node.topics.length ? ` +${node.topic_count - node.topics.length}` : "";
  const topics = node.topics.length ? node.topics.join(", ") + more : `${node.kind} ${short(node.id)}`;
  const state = node.kind === "producer" ? (writes({ node }) ? `producer · ${rate(node.rate)}` : "producer · quiet") : node.topics.length ? `${node.kind} follows` : "";
  return [topics, state].filter(Boolean);
}

function towers(svg, found, width) {
  const text = found.length ? found.map((each) => each.id).join("   ") : "no tower";
  const chip = Math.min(width - 4, 40 + (text.length + 8) * 7);
  svg.append(s("g", { class: "node tower", transform: `translate(${(width - chip) / 2} 4)` },
    s("rect", { width: chip, height: 28, rx: 14 }),
    s("text", { class: "small", x: chip / 2, y: 18, "text-anchor": "middle" }, `${found.length > 1 ? "towers" : "tower"} ${text}`)));
}

/** What the lines mean. */
export function legend() {
  return h("p", { class: "legend" },
    h("span", { class: "key busy" }), "writes now", h("span", { class: "key" }), "connected",
    h("span", { class: "key bad" }), "not connected, as the store says");
}
